"""Attention over pages by our own kernel."""

from __future__ import annotations

import torch

from ..paged.step import PagedStep
from ..transformers.packed_attention import AttentionRule
from . import ops  # noqa: F401  (defines the operators)


def kernel_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PagedStep, rule: AttentionRule
) -> torch.Tensor:
    """See ``Attend``."""
    where = (step.starts, step.lengths, step.first_page, step.pages, step.max_query_len)
    out: torch.Tensor = torch.ops.hf_triton.paged_attention.default(
        q, keys, values, *where, rule.scale, rule.window, rule.softcap, rule.sinks
    )
    return out

"""What attention over a cache in pages is given; each backend is one."""

from __future__ import annotations

from typing import Protocol

import torch

from ..transformers.packed_attention import AttentionRule
from .step import PagedStep


class Attend(Protocol):
    """Causal attention of a step's tokens, each to the earlier tokens of its own sequence."""

    def __call__(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: PagedStep,
        rule: AttentionRule,
        /,
    ) -> torch.Tensor:
        """q (num_tokens, heads, key_dim), keys and values (num_pages, page size, kv_heads, dim),
        the step's own written already, all on the step's device -> (num_tokens, heads, value_dim).
        What padding tokens get does not matter.
        """

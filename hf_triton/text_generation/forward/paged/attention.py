"""Attention over a cache in pages, as transformers calls it (``AttentionInterface``): writes a
layer's keys and values to their pages and has the step's tokens attend to them.

Knows where tokens belong; how they attend is the backend's (``Attend``).
"""

from __future__ import annotations

from typing import Any, Protocol

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


def paged_attention(
    first: PagedStep,
    attend: Attend,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query (1, heads, num_tokens, key_dim), key and value (1, kv_heads, num_tokens, dim) -> (1,
    num_tokens, heads, dim). ``s_aux`` (heads,) are attention sinks.

    Keyword arguments that are not known here are ignored: what they would change shows in the
    engine's check at load.
    """
    layer = first.layer_of(key)
    if layer is None:
        layer = int(module.layer_idx)
        first.write(layer, key, value)
    keys, values = first.cache.keys[layer], first.cache.values[layer]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = AttentionRule(scale, sliding_window or 0, softcap or 0.0, s_aux)
    return attend(query[0].transpose(0, 1), keys, values, first.on(keys.device), rule).unsqueeze(
        0
    ), None

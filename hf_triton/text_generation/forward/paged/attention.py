"""Attention of a step's tokens over a cache in pages, in the place of a model's own
(runtime/attention.py): how a layer attends, and what computes it. Linear layers and norms run over
the row of all tokens; only here are sequences told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .step import PagedStep

CHUNKED = "chunked_attention"  # among a configuration's ``layer_types``


@dataclass(frozen=True)
class AttentionRule:
    """How a layer scores: the scale, its sliding window (0: none), its soft cap (0: none), its
    attention sinks (heads,), and the chunk of positions within which tokens see each other (0:
    none).
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    chunk: int = 0

    @property
    def is_spelled_out(self) -> bool:
        """Whether it has what SDPA does not take."""
        return bool(self.softcap) or self.sinks is not None

    @property
    def reach(self) -> int:
        """Sequences of no more tokens are seen whole (0: all are)."""
        return self.window or self.chunk

    def oldest(self, positions: torch.Tensor) -> torch.Tensor:
        """The first position that tokens at ``positions`` see, where they don't see all."""
        return positions - (positions % self.chunk if self.chunk else self.window - 1)

    def scores(self, raw: torch.Tensor) -> torch.Tensor:
        """Gemma 2's soft cap, https://arxiv.org/abs/2408.00118, section 2."""
        return torch.tanh(raw / self.softcap) * self.softcap if self.softcap else raw


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


def row_attention(
    step: PagedStep,
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
    num_tokens, heads, dim). ``s_aux`` (heads,) are attention sinks. Keys and values are written
    where the ``step`` says.

    Keyword arguments that are not known here are ignored: what they would change shows in the
    engine's check at load.
    """
    layer = step.layer_of(key)
    if layer is None:
        layer = int(module.layer_idx)
        step.write(layer, key, value)
    keys, values = step.cache.keys[layer], step.cache.values[layer]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = AttentionRule(scale, sliding_window or 0, softcap or 0.0, s_aux, _chunk(module))
    out = attend(query[0].transpose(0, 1), keys, values, step.on(keys.device), rule)
    return out.unsqueeze(0), None


def _chunk(module: Any) -> int:
    """The chunk of a layer's attention (Llama 4), 0 without."""
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None) or {}
    is_chunked = kinds and kinds[module.layer_idx] == CHUNKED
    return int(config.attention_chunk_size) if config and is_chunked else 0

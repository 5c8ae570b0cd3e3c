"""Attention of packed texts, each within itself, by compiled loops."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hf_triton.runtime.fused.parts import Attention, Body
from hf_triton.runtime.fused.row_loops import RowLoops
from hf_triton.runtime.kernels import layout
from hf_triton.runtime.kernels.compiled_loops import (
    ThreadTeam,
    bits_of,
    kept_arguments,
    load_kernel,
)

# At least as many numbers as the kernel's blocks have rows and columns.
_ROWS, COLUMNS = 8, 32


@dataclass(frozen=True)
class Texts:
    """Texts packed into one row. Text i is tokens ``starts[i]`` to ``starts[i + 1] - 1``, int64.
    None has more than ``longest`` tokens; ``positions`` has each token's place in its text,
    int32.
    """

    longest: int
    starts: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True)
class Encoder(Body):
    """An encoder's layers, each with ``kv_heads`` heads of keys and values of ``dim`` numbers."""

    kv_heads: int
    dim: int


class TextAttention:
    def __init__(self, encoder: Encoder, loops: RowLoops, team: ThreadTeam) -> None:
        self._loops, self._team = loops, team
        self._kv_heads, self._dim = encoder.kv_heads, encoder.dim
        attentions = {id(layer.attention): layer.attention for layer in encoder.layers}
        self._placing = {
            key: kept_arguments(loops.placing(one, encoder.kv_heads, encoder.dim))
            for key, one in attentions.items()
        }
        tables = {key: relative_tables(one) for key, one in attentions.items()}
        self._relative = {
            key: [None if table is None else table.float() for table in both]
            for key, both in tables.items()
            if any(table is not None for table in both)
        }
        self._attend = load_kernel("attend_texts", loops.dtype)
        self._scratch = torch.zeros(0)

    def __call__(self, attention: Attention, qkv: torch.Tensor, texts: Texts) -> torch.Tensor:
        """qkv (tokens, (heads + 2 kv_heads) * dim), changed in place -> (tokens, heads * dim)."""
        if attention.query_norm is not None and attention.query_norm.is_wide:
            self._loops.norm_heads(attention, qkv, self._dim)
        if attention.rotary is not None or attention.query_norm is not None:
            arguments = self._placing[id(attention)]
            arguments[layout.TOKENS], arguments[layout.QUERIES] = len(qkv), qkv.data_ptr()
            arguments[layout.POSITIONS] = texts.positions.data_ptr()
            self._team.run_with(load_kernel("place", self._loops.dtype), arguments)
        heads, dim, bias, longest = attention.num_heads, self._dim, attention.bias, texts.longest
        out = qkv.new_empty(len(qkv), heads * dim)
        # Tokens and dim, padded to the kernel's blocks; the float32 numbers of a thread's scratch.
        stride, wide = longest + COLUMNS, dim + -dim % COLUMNS
        size = (dim + wide + _ROWS) * stride + _ROWS * (dim + wide)
        if self._relative:
            size += stride * stride + 17 * (stride + _ROWS)
        if self._scratch.numel() < size * self._team.num_threads:
            self._scratch = torch.zeros(size * self._team.num_threads)
        tables = self._relative.get(id(attention), [None, None])
        columns = max(0 if table is None else table.shape[2] for table in tables)
        self._team.run(
            self._attend,
            *(len(texts.starts) - 1, heads, self._kv_heads, dim),
            *(qkv.data_ptr(), out.data_ptr(), texts.starts.data_ptr()),
            *(self._scratch.data_ptr(), size, stride, wide),
            *(attention.window, int(attention.is_causal), bits_of(attention.scale)),
            *((0, 0) if bias is None else (bias.data_ptr(), (bias.shape[1] + 1) // 2)),
            *(0 if table is None else table.data_ptr() for table in tables),
            columns // 2,
            numbers=len(qkv) * longest * heads,
        )
        return out


def relative_tables(attention: Attention) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return attention.relative_keys, attention.relative_queries

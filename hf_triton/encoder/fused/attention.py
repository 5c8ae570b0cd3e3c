"""Attention within each of several packed texts: by compiled loops, or by torch for texts long
enough that torch is faster.
"""

from __future__ import annotations

import timeit
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from hf_triton.runtime.fused.parts import Attention, Body
from hf_triton.runtime.fused.row_loops import RowLoops
from hf_triton.runtime.kernels import layout
from hf_triton.runtime.kernels.kernel_loading import TEXT_KERNELS, load_kernel
from hf_triton.runtime.kernels.thread_team import ThreadTeam, bits_of, kept_arguments

# At least as many numbers as the kernel's blocks have rows and columns.
_ROWS, COLUMNS = 8, 32
# Text lengths in tokens at which both are timed: torch's may be faster from some length on.
_TIMED_LENGTHS = (64, 128, 256, 512, 1024)
_REPEATS = 3
_NEVER = 2**62


@dataclass(frozen=True)
class Texts:
    """Texts of a row, the shortest first: text i is tokens ``starts[i]`` to ``starts[i + 1] - 1``,
    int64, and each token has one of the ``positions`` in its text, int32.
    """

    lengths: list[int]
    starts: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True)
class Encoder(Body):
    """Every layer has ``kv_heads`` heads of ``dim`` numbers."""

    kv_heads: int
    dim: int


class TextAttention:
    def __init__(
        self, encoder: Encoder, loops: RowLoops, team: ThreadTeam, max_length: int
    ) -> None:
        self._loops, self._team = loops, team
        self._kv_heads, self._dim = encoder.kv_heads, encoder.dim
        attentions = {id(layer.attention): layer.attention for layer in encoder.layers}
        self._placing = {
            key: kept_arguments(loops.placing(one, encoder.kv_heads, encoder.dim))
            for key, one in attentions.items()
        }
        self._relative = {
            key: [None if table is None else table.float() for table in _relative(one)]
            for key, one in attentions.items()
            if _is_relative(one)
        }
        dtype = str(loops.dtype).removeprefix("torch.")
        self._attend = load_kernel("attend_texts", dtype, TEXT_KERNELS)
        self._scratch = torch.zeros(0)
        self._long = _NEVER  # tokens from which torch's attention is faster
        plain = [one for one in attentions.values() if _is_plain(one)]
        if plain:
            self._long = self._fastest_from(plain[0], max_length)

    def __call__(self, attention: Attention, qkv: torch.Tensor, texts: Texts) -> torch.Tensor:
        """qkv (tokens, (heads + 2 kv_heads) * dim), changed in place -> (tokens, heads * dim)."""
        if attention.query_norm is not None and attention.query_norm.is_wide:
            self._loops.norm_heads(attention, qkv, self._dim)
        if attention.rotary is not None or attention.query_norm is not None:
            arguments = self._placing[id(attention)]
            arguments[layout.TOKENS], arguments[layout.QUERIES] = len(qkv), qkv.data_ptr()
            arguments[layout.POSITIONS] = texts.positions.data_ptr()
            self._team.run_with(self._loops.kernel("place"), arguments)
        out = qkv.new_empty(len(qkv), attention.num_heads * self._dim)
        num_short = len(texts.lengths)
        if _is_plain(attention):
            num_short = bisect_left(texts.lengths, self._long)
        if num_short:
            short = num_short, texts.lengths[num_short - 1]
            self._attend_short(attention, qkv, texts.starts, short, out)
        long = texts.lengths[num_short:]
        if long:
            begin = len(qkv) - sum(long)
            for part, to in zip(qkv[begin:].split(long), out[begin:].split(long), strict=True):
                self._attend_long(attention, part, to)
        return out

    def _attend_short(
        self,
        attention: Attention,
        qkv: torch.Tensor,
        starts: torch.Tensor,
        texts: tuple[int, int],
        out: torch.Tensor,
    ) -> None:
        """Attends within the first ``texts`` (count, longest length)."""
        (count, longest), dim, bias = texts, self._dim, attention.bias
        # The padded sizes of tokens and of dim, and the float32 numbers of a thread's scratch.
        stride, wide = longest + COLUMNS, dim + -dim % COLUMNS
        size = (dim + wide + _ROWS) * stride + _ROWS * (dim + wide)
        if self._relative:
            size += stride * stride + 17 * (stride + _ROWS)
        tables = self._relative.get(id(attention), [None, None])
        columns = max(0 if table is None else table.shape[2] for table in tables)
        if self._scratch.numel() < size * self._team.num_threads:
            self._scratch = torch.zeros(size * self._team.num_threads)
        self._team.run(
            self._attend,
            *(count, attention.num_heads, self._kv_heads, dim),
            *(qkv.data_ptr(), out.data_ptr(), starts.data_ptr()),
            *(self._scratch.data_ptr(), size, stride, wide),
            *(attention.window, int(attention.is_causal), bits_of(attention.scale)),
            *((0, 0) if bias is None else (bias.data_ptr(), (bias.shape[1] + 1) // 2)),
            *(0 if table is None else table.data_ptr() for table in tables),
            columns // 2,
            numbers=len(qkv) * longest * attention.num_heads,
        )

    def _attend_long(self, attention: Attention, qkv: torch.Tensor, out: torch.Tensor) -> None:
        heads, kv_heads = attention.num_heads, self._kv_heads
        parts = qkv.view(1, len(qkv), -1, self._dim).transpose(1, 2)
        query, key, value = parts.split([heads, kv_heads, kv_heads], dim=1)
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            scale=attention.scale,
            is_causal=attention.is_causal,
            enable_gqa=heads != kv_heads,
        )
        out.view(len(out), heads, self._dim).copy_(attended[0].transpose(0, 1))

    @torch.inference_mode()
    def _fastest_from(self, attention: Attention, max_length: int) -> int:
        width = (attention.num_heads + 2 * self._kv_heads) * self._dim
        for length in _TIMED_LENGTHS:
            qkv = torch.ones(min(length, max_length), width, dtype=self._loops.dtype)
            out = qkv.new_empty(len(qkv), attention.num_heads * self._dim)
            starts = torch.tensor([0, len(qkv)])
            short = partial(self._attend_short, attention, qkv, starts, (1, len(qkv)), out)
            if _seconds(partial(self._attend_long, attention, qkv, out)) < _seconds(short):
                return length
        return _NEVER


def _is_plain(attention: Attention) -> bool:
    """Whether torch's attention needs no mask for it."""
    return not attention.window and attention.bias is None and not _is_relative(attention)


def _relative(attention: Attention) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return attention.relative_keys, attention.relative_queries


def _is_relative(attention: Attention) -> bool:
    return any(table is not None for table in _relative(attention))


def _seconds(run: Callable[[], None]) -> float:
    return min(timeit.repeat(run, number=1, repeat=_REPEATS))

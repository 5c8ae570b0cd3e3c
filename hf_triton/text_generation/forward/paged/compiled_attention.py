"""Attention over pages on a CPU, by a compiled loop: each token reads the pages of its own sequence
where they are, and nothing is gathered or padded.
"""

from __future__ import annotations

import torch

from hf_triton.runtime.kernels import layout
from hf_triton.runtime.kernels.compiled_loops import (
    Kernel,
    ThreadTeam,
    bits_of,
    kept_arguments,
    load_kernel,
)

from .attention import AttentionRule, attend_chunk, plain_attention
from .step import PagedStep

DTYPES = (torch.float32, torch.bfloat16)


class AttendLoop:
    """Attention of ``heads`` of queries over one layer's ``keys`` and ``values``, which are of one
    size. ``placing`` are arguments of the loop that places a step's own; they also say where
    queries lie in a row, else in (tokens, heads, dim).
    """

    def __init__(
        self,
        team: ThreadTeam,
        heads: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        rule: AttentionRule,
        longest: int,
        placing: dict[int, int] | None = None,
    ) -> None:
        num_pages, page_size, kv_heads, dim = keys.shape
        self._team, self._keys, self._values, self._rule = team, keys, values, rule
        self._sinks = None if rule.sinks is None else rule.sinks.float().contiguous()
        self._place = load_kernel("place", keys.dtype)
        self._attend = load_kernel("attend", keys.dtype)
        groups = heads // kv_heads
        numbers = {
            layout.HEADS: heads,
            layout.KV_HEADS: kv_heads,
            layout.DIM: dim,
            layout.TOKEN_STEP: heads * dim,
            layout.HEAD_STEP: groups * dim,
            layout.HEAD_ROWS: num_pages * page_size,
            layout.PAGE_ROWS: page_size,
            layout.KEYS: keys.data_ptr(),
            layout.VALUES: values.data_ptr(),
            layout.LONGEST: longest,
            layout.SCRATCH: team.scratch(longest + dim).data_ptr(),
            layout.WINDOW: rule.window,
            layout.SCALE: bits_of(rule.scale),
            layout.SOFTCAP: bits_of(rule.softcap) if rule.softcap else 0,
            layout.SINKS: 0 if self._sinks is None else self._sinks.data_ptr(),
            **(placing or {}),
        }
        self._arguments = kept_arguments(numbers)
        self._token_bytes = numbers[layout.TOKEN_STEP] * keys.itemsize
        sizes, steps = (kv_heads, groups, dim), (numbers[layout.HEAD_STEP], dim, 1)
        self._view = sizes, (numbers[layout.TOKEN_STEP], *steps)

    def place(self, row: torch.Tensor, step: PagedStep) -> None:
        """Rotates queries and keys of a ``row`` (tokens, ...) in place, and stores its keys and
        values.
        """
        self._run(self._place, row, step, 0, len(row), numbers=row.numel())

    def attend(
        self, row: torch.Tensor, step: PagedStep, out: torch.Tensor, *, places: bool = False
    ) -> None:
        """``row`` (tokens, ...) has the queries, ``out`` is (tokens, heads * dim). With ``places``,
        for decodes alone, does what ``place`` does first.
        """
        self._arguments[layout.PLACES] = places
        address, size = out.data_ptr(), out.stride(0) * out.itemsize
        for first, end, sequence in step.stretches:
            if sequence is not None and self._rule.sinks is None:
                sizes, steps = self._view
                queries = row[first:end].as_strided((end - first, *sizes), steps).flatten(1, 2)
                stored = self._keys, self._values
                attended = attend_chunk(queries, *stored, step, sequence, self._rule)
                out[first:end] = attended.flatten(1)
            else:
                self._arguments[layout.OUT] = address + first * size
                self._run(self._attend, row, step, first, end)

    def _run(
        self,
        kernel: Kernel,
        row: torch.Tensor,
        step: PagedStep,
        first: int,
        end: int,
        **size: int,
    ) -> None:
        arguments, (sequences, positions, table) = self._arguments, step.addresses
        arguments[layout.TOKENS] = end - first
        arguments[layout.QUERIES] = row.data_ptr() + first * self._token_bytes
        arguments[layout.SEQUENCES] = sequences + 4 * first
        arguments[layout.POSITIONS] = positions + 4 * first
        arguments[layout.TABLE], arguments[layout.TABLE_PAGES] = table, step.block_table.shape[1]
        self._team.run_with(kernel, arguments, **size)


class CompiledAttention:
    """See ``Attend``. Plain attention computes other rules. Raises ImportError without Numba."""

    def __init__(self) -> None:
        load_kernel("attend", torch.float32)
        self._team = ThreadTeam(torch.get_num_threads())
        self._loops: dict[tuple[object, ...], AttendLoop] = {}

    def __call__(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: PagedStep,
        rule: AttentionRule,
    ) -> torch.Tensor:
        if rule.chunk or keys.shape != values.shape or not q.dtype == keys.dtype in DTYPES:
            return plain_attention(q, keys, values, step, rule)
        q = q.contiguous()
        out = torch.empty_like(q)
        heads, longest = q.shape[1], step.cache.size.max_model_len
        sinks = 0 if rule.sinks is None else rule.sinks.data_ptr()
        numbers = rule.scale, rule.window, rule.softcap, sinks
        key = (heads, keys.data_ptr(), values.data_ptr(), keys.shape, longest, *numbers)
        if key not in self._loops:
            self._loops[key] = AttendLoop(self._team, heads, keys, values, rule, longest)
        self._loops[key].attend(q.flatten(1), step, out.flatten(1))
        return out

"""Attention over pages on a CPU, by a compiled loop: each token reads the pages of its own sequence
where they are, and nothing is gathered or padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hf_triton.runtime.kernels.kernel_loading import load_kernel
from hf_triton.runtime.kernels.thread_team import Kernel, ThreadTeam, bits_of

from .attention import AttentionRule
from .plain_attention import attend_chunk, plain_attention
from .step import PagedStep

# Chunks of at least 48 tokens that attend to at least 256 are bound by computing, not by reading
# memory: there SDPA's blocked matrix products are faster than the loop.
_LONG_CHUNK, _LONG_PREFIX = 48, 256
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Queries:
    """Where a row's queries are: ``address`` of the first, numbers from one token's to the next's,
    and numbers beside those of each head of keys.
    """

    address: int
    stride: int
    beside: int = 0


class AttendLoop:
    """The loop for a cache whose layers are alike: ``heads`` of queries, ``kv_heads`` of keys."""

    def __init__(
        self, team: ThreadTeam, heads: int, keys: torch.Tensor, rule: AttentionRule, longest: int
    ) -> None:
        num_pages, page_size, kv_heads, dim = keys.shape
        self._team, self.heads = team, heads
        self._kernel = _kernel(rule, keys.dtype)
        self.sizes = (heads, kv_heads, dim, num_pages * page_size)
        self._page_size, self._longest = page_size, longest
        self._scratch = torch.empty(team.num_threads, longest + dim)
        sinks = None if rule.sinks is None else rule.sinks.float().contiguous()
        self._kept = rule, sinks  # whose addresses are in use
        self._rule = (rule.window, bits_of(rule.scale))
        self._changes = (
            bits_of(rule.softcap) if rule.softcap else 0,
            0 if sinks is None else sinks.data_ptr(),
        )

    def run(
        self, num_tokens: int, queries: Queries, stored: tuple[int, int], where: Where, out: int
    ) -> None:
        """Attends for ``num_tokens`` whose queries, numbers and results (tokens, heads * dim) begin
        at these addresses.
        """
        self._team.run(
            self._kernel,
            *(num_tokens, *self.sizes, queries.address, *stored, where.sequences, where.positions),
            *(out, self._scratch.data_ptr(), *self._rule, queries.beside, *self._changes),
            *(where.table, where.table_width, self._page_size, queries.stride, self._longest),
        )


@dataclass(frozen=True)
class Where:
    """The addresses of a step's numbers (tokens,) int32, and of its block table."""

    sequences: int
    positions: int
    table: int
    table_width: int

    def after(self, num_tokens: int) -> Where:
        """From a later token on."""
        offset = 4 * num_tokens
        return Where(self.sequences + offset, self.positions + offset, self.table, self.table_width)


def where_of(step: PagedStep) -> Where:
    table = step.block_table
    addresses = step.sequences.data_ptr(), step.positions.data_ptr(), table.data_ptr()
    return Where(*addresses, table.shape[1])


def stretches(step: PagedStep) -> Iterator[tuple[int, int, int | None]]:
    """A step's tokens (first, end), cut where long chunks begin and end; with the number of the
    sequence of such a one.
    """
    starts, lengths = step.on_host
    done = 0
    for sequence, length in enumerate(lengths):
        start, end = starts[sequence : sequence + 2]
        if end - start >= _LONG_CHUNK and length >= _LONG_PREFIX:
            if done < start:
                yield done, start, None
            yield start, end, sequence
            done = end
    if done < starts[-1]:
        yield done, starts[-1], None


def _kernel(rule: AttentionRule, dtype: torch.dtype) -> Kernel:
    name = "attend_changed" if rule.is_spelled_out else "attend"
    return load_kernel(name, str(dtype).removeprefix("torch."))


class CompiledAttention:
    """See ``Attend``. What the loop does not take, plain attention computes. Raises ImportError
    without Numba.
    """

    def __init__(self) -> None:
        load_kernel("attend", "float32")
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
        (_, heads, dim), loop = q.shape, self._loop(q.shape[1], keys, step, rule)
        out, where, stored = (
            torch.empty_like(q),
            where_of(step),
            (keys.data_ptr(), values.data_ptr()),
        )
        for first, end, sequence in stretches(step):
            if sequence is not None and rule.sinks is None:
                out[first:end] = attend_chunk(q[first:end], keys, values, step, sequence, rule)
            else:
                queries = Queries(q[first:].data_ptr(), heads * dim)
                address = out[first:].data_ptr()
                loop.run(end - first, queries, stored, where.after(first), address)
        return out

    def _loop(
        self, heads: int, keys: torch.Tensor, step: PagedStep, rule: AttentionRule
    ) -> AttendLoop:
        sinks = 0 if rule.sinks is None else rule.sinks.data_ptr()
        longest = step.cache.size.max_model_len
        numbers = rule.scale, rule.window, rule.softcap, sinks
        key = (heads, keys.shape, keys.dtype, longest, *numbers)
        if key not in self._loops:
            self._loops[key] = AttendLoop(self._team, heads, keys, rule, longest)
        return self._loops[key]

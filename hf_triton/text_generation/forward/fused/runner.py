"""Runs a step of a decoder on the CPU, with compiled kernels.

Like the packed runner it lays all tokens of a step in one row. Between two matrix products one
compiled loop replaces a dozen torch operators, and each token reads the keys of its own sequence
alone. Decides no policy: the step says what to compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hf_triton.runtime.fused.parts import Attention, UnsupportedLayersError
from hf_triton.runtime.fused.row_loops import RowLoops
from hf_triton.runtime.kernels.thread_team import Kernel, ThreadTeam, bits_of
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.memory.kv_cache import KVCache

from ..transformers.packed_attention import AttentionRule, PrefillSpan, prefill_attention
from ..transformers.packed_runner import lay_out
from ..transformers.runner import Runner
from .reading import check_sizes, finished, read_decoder

# Chunks of at least 48 tokens that attend to at least 256 are bound by computing, not by reading
# memory: there SDPA's blocked matrix products are faster than the kernel.
_LONG_CHUNK, _LONG_PREFIX = 48, 256
_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class _Way:
    """What places a layer's keys and what attends, with the arguments that stay."""

    place: Kernel
    place_arguments: tuple[int, ...]
    attend: Kernel
    attend_arguments: tuple[int, ...]


class FusedRunner(Runner):
    """Computes steps with a decoder's weights; the model itself is not changed.

    Raises UnsupportedLayersError for a model of another shape, dtype or device.
    """

    supports_drafts = True

    def __init__(self, model: Any, cache: KVCache, device: torch.device) -> None:
        if device.type != "cpu" or model.dtype not in _DTYPES:
            raise UnsupportedLayersError(f"it is {model.dtype} on {device.type}")
        _, self.kv_heads, self.length, self.dim = cache.keys[0].shape
        self.cache = cache
        self.decoder = read_decoder(model, self.length)
        stored = [*cache.keys, *cache.values]
        check_sizes(self.decoder, stored, self.kv_heads, self.length, model.dtype)
        self.heads = self.decoder.layers[0].attention.num_heads
        self._sizes = (self.heads, self.kv_heads, self.dim, self.length)
        self.thread_team = ThreadTeam(torch.get_num_threads())
        self.loops = RowLoops(model.dtype, self.thread_team)
        self.argmax = self.loops.argmax
        self._ways = [self._way(layer.attention) for layer in self.decoder.layers]
        self._scratch = torch.empty(self.thread_team.num_threads, self.length + self.dim)

    def _way(self, attention: Attention) -> _Way:
        """A layer's loops, and those of their arguments that stay."""
        softcap, sinks = attention.softcap, attention.sinks
        return _Way(
            *self.loops.placing(attention),
            self.loops.kernel("attend_changed" if softcap or sinks is not None else "attend"),
            (
                *(attention.window, bits_of(attention.scale), int(attention.is_interleaved)),
                *(bits_of(softcap) if softcap else 0, 0 if sinks is None else sinks.data_ptr()),
            ),
        )

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``."""
        tokens, last_rows, spans = lay_out(step)
        are_few = len(last_rows) == len(step.rows) < tokens.shape[1]
        input_ids, positions, slots = tokens
        where = _Where(slots, positions, _stretches(len(slots), [s for s in spans if _is_long(s)]))
        hidden = self.loops.embedded(self.decoder.embedding, input_ids, positions)
        delta = None
        for index, layer in enumerate(self.decoder.layers):
            x = self.loops.added(hidden, delta, layer.attention_norm)
            qkv = layer.attention.qkv(x)
            self._store(index, layer.attention, qkv, where)
            if layer is self.decoder.layers[-1] and not last_rows:
                return hidden[:0]  # no logits are wanted; quantized layers may not take 0 rows
            if layer is self.decoder.layers[-1] and are_few:
                # The other tokens' keys and values are in the cache: nothing else of them is used.
                hidden, qkv, where = hidden[last_rows], qkv[last_rows], where.of(last_rows)
                x = x[last_rows] if layer.is_parallel else x
            attended = self._attention(index, layer.attention, qkv, where)
            delta = self.loops.rest(layer, hidden, x, layer.attention.output(attended))
        if len(last_rows) > len(step.rows):  # most of them, in another order
            hidden = hidden[last_rows]
            delta = delta[last_rows] if delta is not None else None
        normed = self.loops.added(hidden, delta, self.decoder.norm)
        return finished(self.decoder.head(normed), self.decoder.logit_scale, self.decoder.softcap)

    def _store(self, index: int, attention: Attention, qkv: torch.Tensor, where: _Where) -> None:
        """Norms queries and keys of qkv (tokens, (heads + 2 kv_heads) * dim), rotates them by their
        positions, and writes keys and values to the cache.
        """
        if attention.query_norm is not None and attention.query_norm.is_wide:
            self.loops.norm_heads(attention, qkv, self.dim)
        way = self._ways[index]
        self.thread_team.run(
            way.place,
            *(len(qkv), *self._sizes, qkv.data_ptr(), *self._stored(index), *where.addresses(0)),
            *way.place_arguments,
            parallel=len(qkv) > 1,
        )

    def _attention(
        self, index: int, attention: Attention, qkv: torch.Tensor, where: _Where
    ) -> torch.Tensor:
        """qkv (tokens, (heads + 2 kv_heads) * dim), whose keys and values are in the cache ->
        (tokens, heads * dim).
        """
        out, way = qkv.new_empty(len(qkv), self.heads * self.dim), self._ways[index]
        for first, last, span in where.stretches:
            if span is not None and attention.sinks is None:
                self._attend_long(index, qkv[first:last], span, attention, out[first:last])
                continue
            self.thread_team.run(
                way.attend,
                *(last - first, *self._sizes, qkv[first:].data_ptr(), *self._stored(index)),
                *where.addresses(first),
                *(out[first:].data_ptr(), self._scratch.data_ptr()),
                *way.attend_arguments,
            )
        return out

    def _stored(self, index: int) -> tuple[int, int]:
        """Where a layer's keys and values are."""
        return self.cache.keys[index].data_ptr(), self.cache.values[index].data_ptr()

    def _attend_long(
        self,
        index: int,
        qkv: torch.Tensor,
        span: PrefillSpan,
        attention: Attention,
        out: torch.Tensor,
    ) -> None:
        if attention.is_interleaved:
            groups = qkv.view(1, len(qkv), self.kv_heads, -1, self.dim)[:, :, :, :-2]
            queries = groups.flatten(2, 3)
        else:
            queries = qkv[:, : self.heads * self.dim].view(1, len(qkv), self.heads, self.dim)
        rule = AttentionRule(attention.scale, attention.window, attention.softcap)
        keys, values = self.cache.keys[index], self.cache.values[index]
        attended = prefill_attention(queries.transpose(1, 2), keys, values, span, rule)
        out.view(len(qkv), self.heads, self.dim).copy_(attended)


class _Where:
    """``slots`` and ``positions`` (tokens,) int64 of a step's tokens; ``stretches`` of them are
    computed together: (first, last + 1, its span where that is a long one).
    """

    def __init__(
        self,
        slots: torch.Tensor,
        positions: torch.Tensor,
        stretches: list[tuple[int, int, PrefillSpan | None]],
    ) -> None:
        self.slots, self.positions, self.stretches = slots, positions, stretches
        self._first = slots.data_ptr(), positions.data_ptr()

    def of(self, tokens: list[int]) -> _Where:
        """The places of some tokens, each computed by itself."""
        return _Where(self.slots[tokens], self.positions[tokens], _stretches(len(tokens), []))

    def addresses(self, token: int) -> tuple[int, int]:
        """The addresses of both, from ``token`` on."""
        offset = token * self.slots.itemsize
        return self._first[0] + offset, self._first[1] + offset


def _is_long(span: PrefillSpan) -> bool:
    return span.end - span.start >= _LONG_CHUNK and span.end >= _LONG_PREFIX


def _stretches(
    num_tokens: int, long_spans: list[PrefillSpan]
) -> list[tuple[int, int, PrefillSpan | None]]:
    """A step's tokens, cut where long chunks begin and end."""
    stretches: list[tuple[int, int, PrefillSpan | None]] = []
    done = 0
    for span in long_spans:
        last = span.first + span.end - span.start
        stretches += [(done, span.first, None), (span.first, last, span)]
        done = last
    stretches.append((done, num_tokens, None))
    return [stretch for stretch in stretches if stretch[0] < stretch[1]]

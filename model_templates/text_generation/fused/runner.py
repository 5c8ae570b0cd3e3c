"""Runs a step of a decoder of Llama's shape on the CPU, with compiled kernels.

Like the packed runner it lays all tokens of a step in one row. Between two matrix products one
compiled loop replaces a dozen torch operators, and each token reads the keys of its own sequence
alone. Decides no policy: the step says what to compute.
"""

from __future__ import annotations

from typing import Any

import torch

from ..engine.step import Step
from ..kv.kv_cache import KVCache
from ..runners.packed_attention import AttentionRule, PrefillSpan, prefill_attention
from ..runners.packed_runner import lay_out
from .attention_rules import UnsupportedDecoderError
from .decoder import DecoderLayer, Norm, read_decoder
from .kernel_loading import load_kernel
from .sizes import check_sizes
from .thread_team import ThreadTeam, bits_of

# Chunks of at least 48 tokens that attend to at least 256 are bound by computing, not by reading
# memory: there SDPA's blocked matrix products are faster than the kernel.
_LONG_CHUNK, _LONG_PREFIX = 48, 256
_MIN_PARALLEL_SIZE = 4096  # numbers; for fewer, starting the threads costs more than it saves
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class FusedRunner:
    """Computes steps with a decoder's weights; the model itself is not changed.

    Raises UnsupportedDecoderError for a model of another shape, dtype or device.
    """

    name = "fused"
    takes_drafts = True

    def __init__(self, model: Any, cache: KVCache, device: torch.device) -> None:
        if device.type != "cpu" or model.dtype not in _DTYPES:
            raise UnsupportedDecoderError(f"it is {model.dtype} on {device.type}")
        _, self.kv_heads, self.length, self.dim = cache.keys[0].shape
        self.cache = cache
        self.dtype = model.dtype
        self.decoder = read_decoder(model, self.length, self.dim)
        stored = [*cache.keys, *cache.values]
        check_sizes(self.decoder, stored, self.kv_heads, self.length, self.dtype)
        self.heads = self.decoder.num_heads
        self._sizes = (self.heads, self.kv_heads, self.dim, self.length)
        self.thread_team = ThreadTeam(torch.get_num_threads())
        self._norm, self._silu_mul, self._place, self._attend, self._argmax = (
            load_kernel(name, _DTYPES[model.dtype])
            for name in ("norm", "silu_mul", "place", "attend", "argmax")
        )
        self._scratch = torch.empty(self.thread_team.num_threads, self.length + self.dim)

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.rows``."""
        tokens, last_rows, spans = lay_out(step)
        input_ids, positions, slots = tokens
        where = _Where(slots, positions, _stretches(len(slots), [s for s in spans if _is_long(s)]))
        hidden = self.decoder.embed(input_ids)  # (tokens, hidden)
        delta = None
        for index, layer in enumerate(self.decoder.layers):
            qkv = layer.qkv(self._normalised(hidden, delta, layer.input_norm))
            self._store(index, layer, qkv, where)
            if layer is self.decoder.layers[-1] and not last_rows:
                return hidden[:0]  # no logits are wanted; quantized layers may not take 0 rows
            if layer is self.decoder.layers[-1] and len(last_rows) < len(slots):
                # The other tokens' keys and values are in the cache: nothing else of them is used.
                hidden, qkv, where = hidden[last_rows], qkv[last_rows], where.of(last_rows)
            delta = layer.output(self._attention(index, layer, qkv, where))
            delta = self._mlp(layer, self._normalised(hidden, delta, layer.mlp_norm))
        logits: torch.Tensor = self.decoder.head(self._normalised(hidden, delta, self.decoder.norm))
        return logits

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """logits (rows, vocab) -> the first of the largest in each row, (rows,) int64."""
        if logits.dtype != self.dtype or not logits.is_contiguous():
            return logits.argmax(dim=-1)
        rows, size = logits.shape
        out = torch.empty(rows, dtype=torch.int64)
        self.thread_team.run(self._argmax, rows, size, logits.data_ptr(), out.data_ptr())
        return out

    def _normalised(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, norm: Norm
    ) -> torch.Tensor:
        """Adds ``delta`` to ``hidden`` in place -> its norm, (tokens, hidden)."""
        rows, size = hidden.shape
        out = torch.empty_like(hidden)
        self.thread_team.run(
            self._norm,
            *(rows, size, hidden.data_ptr(), 0 if delta is None else delta.data_ptr()),
            *(norm.weight.data_ptr(), out.data_ptr(), bits_of(norm.eps)),
            parallel=rows * size > _MIN_PARALLEL_SIZE,
        )
        return out

    def _mlp(self, layer: DecoderLayer, x: torch.Tensor) -> torch.Tensor:
        gate_up = layer.gate_up(x)
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        self.thread_team.run(
            self._silu_mul,
            *(rows, size, gate_up.data_ptr(), out.data_ptr()),
            parallel=rows * size > _MIN_PARALLEL_SIZE,
        )
        return layer.down(out)

    def _store(self, index: int, layer: DecoderLayer, qkv: torch.Tensor, where: _Where) -> None:
        """Rotates queries and keys of qkv (tokens, (heads + 2 kv_heads) * dim) by their positions,
        in place, and writes keys and values to the cache.
        """
        q_norm, k_norm = layer.query_norm, layer.key_norm
        self.thread_team.run(
            self._place,
            *(len(qkv), *self._sizes, qkv.data_ptr(), *self._stored(index), *where.addresses(0)),
            *(self.decoder.cos.data_ptr(), self.decoder.sin.data_ptr()),
            self.decoder.cos.shape[1],
            q_norm.weight.data_ptr() if q_norm else 0,
            k_norm.weight.data_ptr() if k_norm else 0,
            bits_of(q_norm.eps) if q_norm else 0,
            parallel=len(qkv) > 1,
        )

    def _attention(
        self, index: int, layer: DecoderLayer, qkv: torch.Tensor, where: _Where
    ) -> torch.Tensor:
        """qkv (tokens, (heads + 2 kv_heads) * dim), whose keys and values are in the cache ->
        (tokens, heads * dim).
        """
        out = qkv.new_empty(len(qkv), self.heads * self.dim)
        for first, last, span in where.stretches:
            if span is not None:
                self._attend_long(index, qkv[first:last], span, layer, out[first:last])
                continue
            self.thread_team.run(
                self._attend,
                *(last - first, *self._sizes, qkv[first:].data_ptr(), *self._stored(index)),
                *where.addresses(first),
                *(out[first:].data_ptr(), self._scratch.data_ptr()),
                *(layer.window, bits_of(layer.scale)),
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
        layer: DecoderLayer,
        out: torch.Tensor,
    ) -> None:
        queries = qkv[:, : self.heads * self.dim].view(1, len(qkv), self.heads, self.dim)
        rule = AttentionRule(layer.scale, layer.window)
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
        """Of some of them, each computed by itself."""
        return _Where(self.slots[tokens], self.positions[tokens], _stretches(len(tokens), []))

    def addresses(self, token: int) -> tuple[int, int]:
        """Of both, from ``token`` on."""
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

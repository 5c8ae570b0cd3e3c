"""Runs a step of a decoder on the CPU, with compiled kernels.

Like the packed runner it lays all tokens of a step in one row. Between two matrix products one
compiled loop replaces a dozen torch operators, and each token reads the keys of its own sequence
alone. Decides no policy: the step says what to compute.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from hf_triton.runtime.fused.parts import Attention, UnsupportedLayersError
from hf_triton.runtime.fused.row_loops import RowLoops
from hf_triton.runtime.kernels.thread_team import Kernel, ThreadTeam
from hf_triton.text_generation.memory.paged_cache import PagedCache

from ..paged.attention import AttentionRule
from ..paged.compiled_attention import DTYPES, AttendLoop, Queries, Where, stretches, where_of
from ..paged.plain_attention import attend_chunk
from ..paged.runner import PageRunner
from ..paged.step import PagedStep
from .reading import check_sizes, finished, read_decoder


@dataclass(frozen=True)
class _Way:
    """What places a layer's keys, with the arguments that stay, and what attends; where its keys
    and values are.
    """

    place: Kernel
    place_arguments: tuple[int, ...]
    attend: AttendLoop
    rule: AttentionRule
    stored: tuple[int, int]


class FusedRunner(PageRunner):
    """Computes steps with a decoder's weights; the model itself is not changed.

    Raises UnsupportedLayersError for a model of another shape, dtype or device.
    """

    def __init__(self, model: Any, cache: PagedCache, device: torch.device) -> None:
        if device.type != "cpu" or model.dtype not in DTYPES:
            raise UnsupportedLayersError(f"it is {model.dtype} on {device.type}")
        super().__init__(model, cache, device)
        self.kv_heads, self.dim = cache.keys[0].shape[2:]
        length = cache.size.max_model_len
        self.decoder = read_decoder(model, length)
        stored = [*cache.keys, *cache.values]
        check_sizes(self.decoder, stored, self.kv_heads, length, model.dtype)
        self.heads = self.decoder.layers[0].attention.num_heads
        self.thread_team = ThreadTeam(torch.get_num_threads())
        self.loops = RowLoops(model.dtype, self.thread_team)
        self.argmax = self.loops.argmax
        self._ways = [
            self._way(index, layer.attention) for index, layer in enumerate(self.decoder.layers)
        ]

    def _way(self, index: int, attention: Attention) -> _Way:
        keys, values = self.cache.keys[index], self.cache.values[index]
        rule = AttentionRule(attention.scale, attention.window, attention.softcap, attention.sinks)
        longest = self.cache.size.max_model_len
        return _Way(
            *self.loops.placing(attention),
            AttendLoop(self.thread_team, self.heads, keys, rule, longest),
            rule,
            (keys.data_ptr(), values.data_ptr()),
        )

    @torch.inference_mode()
    def run(self, step: PagedStep) -> torch.Tensor:
        """Logits (len(step.last), vocab) of a step."""
        positions, last_rows = step.long_positions, step.last.long()
        are_few = len(last_rows) < step.num_tokens
        where, cuts = where_of(step), list(stretches(step))
        hidden = self.loops.embedded(self.decoder.embedding, step.token_ids, positions)
        delta = None
        for index, layer in enumerate(self.decoder.layers):
            x = self.loops.added(hidden, delta, layer.attention_norm)
            qkv = layer.attention.qkv(x)
            self._store(index, layer.attention, qkv, step)
            if layer is self.decoder.layers[-1] and not len(last_rows):
                return hidden[:0]  # no logits are wanted; quantized layers may not take 0 rows
            if layer is self.decoder.layers[-1] and are_few:
                # The other tokens' keys and values are in the cache: nothing else of them is used.
                hidden, qkv = hidden[last_rows], qkv[last_rows]
                kept = [numbers[last_rows] for numbers in (step.sequences, step.positions)]
                where = replace(where, sequences=kept[0].data_ptr(), positions=kept[1].data_ptr())
                cuts = [(0, len(last_rows), None)]
                x = x[last_rows] if layer.is_parallel else x
            attended = self._attention(index, layer.attention, qkv, step, where, cuts)
            delta = self.loops.rest(layer, hidden, x, layer.attention.output(attended))
        if step.max_query_len > 1 and not are_few:  # all of them, in another order
            hidden = hidden[last_rows]
            delta = delta[last_rows] if delta is not None else None
        normed = self.loops.added(hidden, delta, self.decoder.norm)
        return finished(self.decoder.head(normed), self.decoder.logit_scale, self.decoder.softcap)

    def _store(self, index: int, attention: Attention, qkv: torch.Tensor, step: PagedStep) -> None:
        """Norms queries and keys of qkv (tokens, (heads + 2 kv_heads) * dim), rotates them by their
        positions, and writes keys and values to the cache.
        """
        if attention.query_norm is not None and attention.query_norm.is_wide:
            self.loops.norm_heads(attention, qkv, self.dim)
        way = self._ways[index]
        self.thread_team.run(
            way.place,
            *(len(qkv), *way.attend.sizes, qkv.data_ptr(), *way.stored),
            *(step.rows.data_ptr(), step.positions.data_ptr(), *way.place_arguments),
            parallel=len(qkv) > 1,
        )

    def _attention(
        self,
        index: int,
        attention: Attention,
        qkv: torch.Tensor,
        step: PagedStep,
        where: Where,
        cuts: list[tuple[int, int, int | None]],
    ) -> torch.Tensor:
        """qkv (tokens, (heads + 2 kv_heads) * dim), whose keys and values are in the cache ->
        (tokens, heads * dim).
        """
        out, way = qkv.new_empty(len(qkv), self.heads * self.dim), self._ways[index]
        beside = 2 * self.dim if attention.is_interleaved else 0
        for first, end, sequence in cuts:
            if sequence is not None and attention.sinks is None:
                keys, values = self.cache.keys[index], self.cache.values[index]
                queries = self._queries(attention, qkv[first:end])
                attended = attend_chunk(queries, keys, values, step, sequence, way.rule)
                out[first:end].view(end - first, self.heads, self.dim).copy_(attended)
                continue
            way.attend.run(
                end - first,
                Queries(qkv[first:].data_ptr(), qkv.shape[1], beside),
                way.stored,
                where.after(first),
                out[first:].data_ptr(),
            )
        return out

    def _queries(self, attention: Attention, qkv: torch.Tensor) -> torch.Tensor:
        """Those of (tokens, heads, dim)."""
        if attention.is_interleaved:
            groups = qkv.view(len(qkv), self.kv_heads, -1, self.dim)
            return groups[:, :, :-2].flatten(1, 2)
        return qkv[:, : self.heads * self.dim].view(len(qkv), self.heads, self.dim)

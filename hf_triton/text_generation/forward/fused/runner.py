"""Runs a step of a decoder on the CPU, with compiled kernels.

Like the packed runner it lays all tokens of a step in one row. Between two matrix products one
compiled loop replaces a dozen torch operators, and each token reads the keys of its own sequence
alone. Decides no policy: the step says what to compute.
"""

from __future__ import annotations

from typing import Any

import torch

from hf_triton.runtime.fused.parts import Attention, UnsupportedLayersError
from hf_triton.runtime.fused.row_loops import RowLoops
from hf_triton.runtime.kernels.thread_team import ThreadTeam
from hf_triton.text_generation.memory.paged_cache import PagedCache

from ..paged.attention import AttentionRule
from ..paged.compiled_attention import DTYPES, AttendLoop
from ..paged.runner import PageRunner
from ..paged.step import PagedStep
from .reading import check_sizes, finished, read_decoder


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
        self._attention = [
            self._loop(index, layer.attention) for index, layer in enumerate(self.decoder.layers)
        ]

    def _loop(self, index: int, attention: Attention) -> AttendLoop:
        rule = AttentionRule(attention.scale, attention.window, attention.softcap, attention.sinks)
        return AttendLoop(
            self.thread_team,
            self.heads,
            self.cache.keys[index],
            self.cache.values[index],
            rule,
            self.cache.size.max_model_len,
            self.loops.placing(attention, self.kv_heads, self.dim),
        )

    @torch.inference_mode()
    def run(self, step: PagedStep) -> torch.Tensor:
        """Logits (len(step.last), vocab) of a step."""
        last_rows, layers, places = step.last.long(), self.decoder.layers, not step.chunks
        are_few = len(last_rows) < step.num_tokens
        hidden = self.loops.embedded(self.decoder.embedding, step.token_ids, step.positions)
        delta = None
        for loop, layer in zip(self._attention, layers, strict=True):
            x = self.loops.added(hidden, delta, layer.attention_norm)
            qkv = layer.attention.qkv(x)
            if layer.attention.query_norm is not None and layer.attention.query_norm.is_wide:
                self.loops.norm_heads(layer.attention, qkv, self.dim)
            if not places:
                loop.place(qkv, step)
            if layer is layers[-1] and not len(last_rows):
                return hidden[:0]  # no logits are wanted; quantized layers may not take 0 rows
            if layer is layers[-1] and are_few:
                # The other tokens' keys and values are in the cache: nothing else of them is used.
                hidden, qkv, step = hidden[last_rows], qkv[last_rows], step.of_tokens(last_rows)
                x = x[last_rows] if layer.is_parallel else x
            attended = qkv.new_empty(len(qkv), self.heads * self.dim)
            loop.attend(qkv, step, attended, places=places)
            delta = self.loops.rest(layer, hidden, x, layer.attention.output(attended))
        if not places and not are_few:  # all of them, in another order
            hidden = hidden[last_rows]
            delta = delta[last_rows] if delta is not None else None
        normed = self.loops.added(hidden, delta, self.decoder.norm)
        return finished(self.decoder.head(normed), self.decoder.logit_scale, self.decoder.softcap)

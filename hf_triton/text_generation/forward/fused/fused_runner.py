"""Runs a step of a decoder on the CPU, with compiled kernels: between two matrix products one loop
replaces a dozen torch operators, and each token reads the keys of its own sequence alone.

A model's layers are read from one recorded forward of a few tokens; every part is held against what
the model computed there. Whether the whole is right shows in the trial run (in_flight/trial.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hf_triton.runtime.fused.parts import Body, Linear, UnsupportedLayersError, check_body
from hf_triton.runtime.fused.reading.attention import joined_by_prepacking
from hf_triton.runtime.fused.reading.layers import read_body
from hf_triton.runtime.fused.reading.recording import Call, near, record
from hf_triton.runtime.fused.row_loops import RowLoops
from hf_triton.runtime.kernels.compiled_loops import ThreadTeam
from hf_triton.text_generation.lora.linear import with_adapters, without_adapters
from hf_triton.text_generation.memory.paged_cache import PagedCache

from ..paged.attention import AttentionRule
from ..paged.compiled_attention import DTYPES, AttendLoop
from ..paged.page_runner import PageRunner
from ..paged.step import PagedStep


@dataclass(frozen=True)
class Decoder(Body):
    """Logits of the ``head`` are scaled by ``logit_scale``, then capped by ``softcap`` (0: not)."""

    head: Linear
    logit_scale: float = 1.0
    softcap: float = 0.0


@torch.inference_mode()
def read_decoder(model: Any, max_model_len: int) -> Decoder:
    """Reads the model's layers, joined where prepacking joins. Raises UnsupportedLayersError."""
    root = record(model, (0, max_model_len - 1), use_cache=False)
    heads = [call for call in root.walk() if call.module is model.get_output_embeddings()]
    if not heads:
        raise UnsupportedLayersError("it has no head")
    body, _ = read_body(model, root, heads[-1].input, (0, max_model_len), _joined)
    logits = _logits(model.config.get_text_config(), root, heads[-1])
    return Decoder(body.embedding, body.layers, body.norm, heads[-1].module, *logits)


def _joined(*parts: Any) -> Linear:
    return with_adapters(joined_by_prepacking(*map(without_adapters, parts)), parts)


def _logits(config: Any, root: Call, head: Call) -> tuple[float, float]:
    """The factor of the logits and their soft cap."""
    wanted = root.outputs
    for scale in (
        1.0,
        getattr(config, "logit_scale", 1.0),
        1 / (getattr(config, "logits_scaling", 1.0) or 1.0),
    ):
        for softcap in (0.0, getattr(config, "final_logit_softcapping", None) or 0.0):
            logits = finished(head.output.clone(), float(scale), float(softcap))
            if any(near(logits, made) for made in wanted if made.numel() == logits.numel()):
                return float(scale), float(softcap)
    raise UnsupportedLayersError(f"{root.kind} changes its logits after the head")


def finished(logits: torch.Tensor, scale: float, softcap: float) -> torch.Tensor:
    if scale != 1:
        logits.mul_(scale)
    if softcap:
        logits.div_(softcap).tanh_().mul_(softcap)
    return logits


class FusedRunner(PageRunner):
    """Leaves the model as it is. Raises UnsupportedLayersError for another shape or dtype."""

    def __init__(self, model: Any, cache: PagedCache, device: torch.device) -> None:
        if device.type != "cpu" or model.dtype not in DTYPES:
            raise UnsupportedLayersError(f"it is {model.dtype} on {device.type}")
        super().__init__(model, cache, device)
        self.kv_heads, self.dim = cache.keys[0].shape[2:]
        length = cache.size.max_model_len
        self.decoder = read_decoder(model, length)
        self._check_sizes(length, model.dtype)
        self.heads = self.decoder.layers[0].attention.num_heads
        self.thread_team = ThreadTeam(torch.get_num_threads())
        self.loops = RowLoops(model.dtype, self.thread_team)
        self.argmax = self.loops.argmax
        self._attention = [
            AttendLoop(
                self.thread_team,
                self.heads,
                keys,
                values,
                AttentionRule(own.scale, own.window, own.softcap, own.sinks),
                length,
                self.loops.placing(own, self.kv_heads, self.dim),
            )
            for own, keys, values in zip(
                (layer.attention for layer in self.decoder.layers),
                cache.keys,
                cache.values,
                strict=True,
            )
        ]

    @torch.inference_mode()
    def _check_sizes(self, length: int, dtype: torch.dtype) -> None:
        """Checks the layers against each other, and against the keys and values of the cache."""
        stored, layers = [*self.cache.keys, *self.cache.values], self.decoder.layers
        if len(stored) != 2 * len(layers):
            raise UnsupportedLayersError("not every layer keeps keys and values")
        if any(one.shape != stored[0].shape or one.dtype != dtype for one in stored):
            raise UnsupportedLayersError("its keys and values differ in size")
        check_body(self.decoder, (self.kv_heads, self.dim, length), dtype)
        if len({layer.attention.num_heads for layer in layers}) > 1:
            raise UnsupportedLayersError("its layers differ in the number of heads")
        if any(layer.norms_sums for layer in layers):
            raise UnsupportedLayersError("it normalizes sums")

    @torch.inference_mode()
    def run(self, step: PagedStep) -> torch.Tensor:
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

"""Runs a step of a decoder of Llama's shape on a GPU: what lies between two matrix products is one
kernel, nine or ten a layer in all.

Decides no policy: the step says what to compute.
"""

from __future__ import annotations

from typing import Any

import torch
from hf_runtime.devices.device import devices_of

from ..fused.attention_rules import UnsupportedDecoderError
from ..fused.decoder import DecoderLayer, Norm, read_decoder
from ..fused.sizes import check_sizes
from ..kv.paged_cache import PagedCache
from ..paged.attention import Attend
from ..paged.runner import PageRunner
from ..paged.step import PagedStep
from ..runners.packed_attention import AttentionRule
from .attention import kernel_attention
from .joint_linear import join

_OPS = torch.ops.hf_triton
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class GpuFusedRunner(PageRunner):
    """Computes steps with a decoder's weights. Linear layers of one input are joined in the model
    itself, which computes what it did.

    Raises UnsupportedDecoderError for a model of another shape or dtype, or on several devices.
    """

    name = "fused"

    def __init__(
        self,
        model: Any,
        cache: PagedCache,
        device: torch.device,
        attend: Attend = kernel_attention,
    ) -> None:
        if model.dtype not in _DTYPES or len(devices_of(model)) > 1:
            raise UnsupportedDecoderError(
                f"it is {model.dtype} on {len(devices_of(model))} devices"
            )
        super().__init__(model, cache, device)
        self.attend = attend
        _, _, self.kv_heads, self.dim = cache.keys[0].shape
        length = cache.size.max_model_len
        self.decoder = read_decoder(model, length, self.dim, join)
        stored = [*cache.keys, *cache.values]
        check_sizes(self.decoder, stored, self.kv_heads, length, model.dtype)
        self.heads = self.decoder.num_heads
        first, second = torch.stack([self.decoder.cos, self.decoder.sin]).chunk(2, dim=-1)
        if (first != second).any():
            raise UnsupportedDecoderError("it rotates the halves of a head by different angles")
        self._head_norms = [_head_norms(layer) for layer in self.decoder.layers]
        self._rules = [AttentionRule(layer.scale, layer.window) for layer in self.decoder.layers]
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the weights that were joined

    def run(self, step: PagedStep) -> torch.Tensor:
        """Logits (len(step.last), vocab) of a step on the device."""
        hidden = self.decoder.embed(step.token_ids)  # (tokens, hidden)
        delta, wants_fewer = None, len(step.last) < step.num_tokens
        for index, layer in enumerate(self.decoder.layers):
            qkv = layer.qkv(_normalised(hidden, delta, layer.input_norm))
            self._store(index, qkv, step)
            if layer is self.decoder.layers[-1] and not len(step.last):
                return hidden[:0]  # no logits are wanted; quantized layers may not take 0 rows
            attended = self._attention(index, qkv, step)
            if layer is self.decoder.layers[-1] and wants_fewer:
                # The other tokens' keys and values are in the cache: nothing else of them is used.
                hidden = hidden.index_select(0, step.last)
                attended = attended.index_select(0, step.last)
            delta = layer.output(attended)
            gate_up = layer.gate_up(_normalised(hidden, delta, layer.mlp_norm))
            delta = layer.down(_OPS.silu_mul.default(gate_up))
        out = _normalised(hidden, delta, self.decoder.norm)
        if not wants_fewer and step.max_query_len > 1:  # as many, but not each token's
            out = out.index_select(0, step.last)
        logits: torch.Tensor = self.decoder.head(out)
        return logits

    def _store(self, index: int, qkv: torch.Tensor, step: PagedStep) -> None:
        """Rotates queries and keys of qkv (tokens, (heads + 2 kv_heads) * dim) by their positions,
        and writes keys and values to the cache.
        """
        norm = self.decoder.layers[index].query_norm
        _OPS.rotate_and_store.default(
            *(qkv, self.cache.keys[index], self.cache.values[index], step.rows, step.positions),
            *(self.decoder.cos, self.decoder.sin),
            *(self._head_norms[index], norm.eps if norm else 0.0),
        )

    def _attention(self, index: int, qkv: torch.Tensor, step: PagedStep) -> torch.Tensor:
        """qkv, rotated, whose keys and values are in the cache -> (tokens, heads * dim)."""
        q = qkv[:, : self.heads * self.dim].unflatten(1, (self.heads, self.dim))
        keys, values = self.cache.keys[index], self.cache.values[index]
        return self.attend(q, keys, values, step, self._rules[index]).flatten(1)


def _normalised(hidden: torch.Tensor, delta: torch.Tensor | None, norm: Norm) -> torch.Tensor:
    """Adds ``delta`` to ``hidden`` in place -> its norm, (tokens, hidden)."""
    out: torch.Tensor = _OPS.add_rms_norm.default(hidden, delta, norm.weight, norm.eps)
    return out


def _head_norms(layer: DecoderLayer) -> torch.Tensor | None:
    """(3, dim), as rotate_and_store takes them."""
    q_norm, k_norm = layer.query_norm, layer.key_norm
    if q_norm is None or k_norm is None:
        return None
    if q_norm.eps != k_norm.eps:
        raise UnsupportedDecoderError("the norms of its queries and keys differ in epsilon")
    return torch.stack([q_norm.weight, k_norm.weight, torch.ones_like(q_norm.weight)])

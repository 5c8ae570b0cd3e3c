"""Runs a step of a decoder of Llama's shape on a GPU: what lies between two matrix products is one
kernel, nine or ten a layer in all.

Decides no policy: the step says what to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hf_triton.runtime.devices.device import devices_of
from hf_triton.runtime.fused.parts import (
    Attention,
    Embedding,
    Linear,
    Mlp,
    Norm,
    UnsupportedLayersError,
)
from hf_triton.runtime.fused.reading.attention import joined_by_prepacking
from hf_triton.text_generation.memory.paged_cache import PagedCache

from ..fused.decoder import Decoder
from ..fused.reading import read_decoder
from ..fused.sizes import check_sizes
from ..paged.attention import Attend
from ..paged.runner import PageRunner
from ..paged.step import PagedStep
from ..transformers.packed_attention import AttentionRule
from .attention import kernel_attention

_OPS = torch.ops.hf_triton
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class GpuFusedRunner(PageRunner):
    """Computes steps with a decoder's weights. Linear layers of one input are joined in the model
    itself, which computes what it did.

    Raises UnsupportedLayersError for a model of another shape or dtype, or on several devices.
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
            raise UnsupportedLayersError(f"it is {model.dtype} on {len(devices_of(model))} devices")
        super().__init__(model, cache, device)
        self.attend = attend
        _, _, self.kv_heads, self.dim = cache.keys[0].shape
        length = cache.size.max_model_len
        self.decoder = read_decoder(model, length, join)
        stored = [*cache.keys, *cache.values]
        check_sizes(self.decoder, stored, self.kv_heads, length, model.dtype)
        self.layers = _plain_layers(self.decoder)
        self.heads = self.layers[0].attention.num_heads
        rotary = self.layers[0].attention.rotary
        assert rotary is not None
        if rotary.cos.dtype != model.dtype:
            raise UnsupportedLayersError(f"its rotary embedding is in {rotary.cos.dtype}")
        self._cos, self._sin = rotary.cos, rotary.sin
        attentions = [layer.attention for layer in self.layers]
        self._head_norms = [_head_norms(attention) for attention in attentions]
        self._rules = [AttentionRule(one.scale, one.window) for one in attentions]
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the weights that were joined

    def run(self, step: PagedStep) -> torch.Tensor:
        """Logits (len(step.last), vocab) of a step on the device."""
        hidden = self.decoder.embedding.tokens(step.token_ids)  # (tokens, hidden)
        delta, wants_fewer = None, len(step.last) < step.num_tokens
        for index, layer in enumerate(self.layers):
            qkv = layer.attention.qkv(_normalised(hidden, delta, layer.attention_norm))
            self._store(index, qkv, step)
            if layer is self.layers[-1] and not len(step.last):
                return hidden[:0]  # no logits are wanted; quantized layers may not take 0 rows
            attended = self._attention(index, qkv, step)
            if layer is self.layers[-1] and wants_fewer:
                # The other tokens' keys and values are in the cache: nothing else of them is used.
                hidden = hidden.index_select(0, step.last)
                attended = attended.index_select(0, step.last)
            delta = layer.attention.output(attended)
            gate_up = layer.up(_normalised(hidden, delta, layer.mlp_norm))
            delta = layer.down(_OPS.silu_mul.default(gate_up))
        assert self.decoder.norm is not None  # _plain_layers
        out = _normalised(hidden, delta, self.decoder.norm)
        if not wants_fewer and step.max_query_len > 1:  # as many, but not each token's
            out = out.index_select(0, step.last)
        logits: torch.Tensor = self.decoder.head(out)
        return logits

    def _store(self, index: int, qkv: torch.Tensor, step: PagedStep) -> None:
        """Rotates queries and keys of qkv (tokens, (heads + 2 kv_heads) * dim) by their positions,
        and writes keys and values to the cache.
        """
        norm = self.layers[index].attention.query_norm
        _OPS.rotate_and_store.default(
            *(qkv, self.cache.keys[index], self.cache.values[index], step.rows, step.positions),
            *(self._cos, self._sin),
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


@dataclass(frozen=True)
class _PlainLayer:
    """A layer of Llama's shape, all that the kernels compute."""

    attention: Attention
    attention_norm: Norm
    mlp_norm: Norm
    up: Linear
    down: Linear


def _plain_layers(decoder: Decoder) -> list[_PlainLayer]:
    """Raises UnsupportedLayersError where the decoder is not of Llama's shape."""
    if decoder.norm is None or decoder.norm.is_wide:
        raise UnsupportedLayersError("it norms in float32")
    if decoder.embedding != Embedding(decoder.embedding.tokens):
        raise UnsupportedLayersError("its embedding is not Llama's")
    if decoder.logit_scale != 1 or decoder.softcap:
        raise UnsupportedLayersError("it scales or caps its logits")
    layers = []
    for layer in decoder.layers:
        attention, mlp = layer.attention, layer.mlp
        others = layer.attention_post_norm, layer.mlp_post_norm
        if layer.attention_norm is None or layer.mlp_norm is None or any(others):
            raise UnsupportedLayersError("its norms do not stand where Llama's do")
        if layer.is_parallel or layer.scale != 1:
            raise UnsupportedLayersError("its residuals are not Llama's")
        norms = layer.attention_norm, layer.mlp_norm, attention.query_norm, attention.key_norm
        if any(norm is not None and norm.is_wide for norm in norms):
            raise UnsupportedLayersError("it norms in float32")
        rotary = attention.rotary
        if rotary is None or rotary.in_pairs or rotary is not decoder.layers[0].attention.rotary:
            raise UnsupportedLayersError("its layers are not rotated as Llama's are")
        if attention.is_interleaved or attention.softcap or attention.sinks is not None:
            raise UnsupportedLayersError("its attention is not Llama's")
        if not isinstance(mlp, Mlp) or not mlp.is_gated or mlp.activation != "silu":
            raise UnsupportedLayersError("its MLP is not Llama's")
        layers.append(
            _PlainLayer(attention, layer.attention_norm, layer.mlp_norm, mlp.up, mlp.down)
        )
    return layers


def _head_norms(attention: Attention) -> torch.Tensor | None:
    """(3, dim), as rotate_and_store takes them."""
    q_norm, k_norm = attention.query_norm, attention.key_norm
    if q_norm is None or k_norm is None:
        return None
    if q_norm.eps != k_norm.eps:
        raise UnsupportedLayersError("the norms of its queries and keys differ in epsilon")
    return torch.stack([q_norm.weight, k_norm.weight, torch.ones_like(q_norm.weight)])


class JointLinear:
    """(tokens, in_features) -> the outputs of all, one after the other, (tokens, sum of
    out_features).

    Fewer kernels, each large enough to fill the device. The joint weight is the only one: the
    layers' own become views of it.
    """

    @torch.inference_mode(mode=False)
    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.weight = _joined([layer.weight for layer in layers])
        has_bias = layers[0].bias is not None
        self.bias = _joined([layer.bias for layer in layers]) if has_bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


_MADE: WeakKeyDictionary[nn.Module, JointLinear] = WeakKeyDictionary()  # by their first layer


def join(*layers: Any) -> Linear:
    """The joint product of plain linear layers; of others (quantized, or with hooks) their own."""
    if not _are_alike(layers):
        return joined_by_prepacking(*layers)
    if layers[0] not in _MADE:
        _MADE[layers[0]] = JointLinear(layers)
    return _MADE[layers[0]]


def _are_alike(layers: Sequence[Any]) -> bool:
    """Whether all are nothing but a product with a weight, alike in dtype, device and bias."""
    # accelerate's hooks replace what a layer computes
    if any(type(layer) is not nn.Linear or hasattr(layer, "_hf_hook") for layer in layers):
        return False
    if any(is_traceable_wrapper_subclass(layer.weight) for layer in layers):  # torchao's
        return False
    kinds = {(layer.weight.dtype, layer.weight.device, layer.bias is None) for layer in layers}
    return len(kinds) == 1


@torch.no_grad()
def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The parts one after the other; they become views of that."""
    whole = torch.cat([part.detach() for part in parts])
    for part, view in zip(parts, whole.split([len(part) for part in parts]), strict=True):
        part.data = view
    return whole

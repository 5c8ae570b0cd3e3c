"""Reads a transformers model as a decoder of Llama's shape: what each layer is made of.

Goes by the modules' names and contents, which Llama, Mistral, Qwen2, Qwen3, SmolLM and many others
share. Whether the model computes anything else shows in the trial run of
in_flight/runner_selection.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hf_runtime.devices.prepacked_linear import LinearPart

from ..lora.linear import with_adapters, without_adapters
from .attention_rules import UnsupportedDecoderError, angles, attention_rules

Linear = Callable[[torch.Tensor], torch.Tensor]

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_BASE = {"embed_tokens", "layers", "norm", "rotary_emb"}


@dataclass(frozen=True)
class Norm:
    """An RMSNorm's weight (size,) and its epsilon."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True)
class DecoderLayer:
    """One layer. ``qkv``: (tokens, hidden) -> (tokens, (heads + 2 kv_heads) * dim). ``gate_up``:
    (tokens, hidden) -> (tokens, 2 * inner), gates first. ``window`` is 0 where a token attends to
    every earlier one.
    """

    input_norm: Norm
    qkv: Linear
    output: Linear
    mlp_norm: Norm
    gate_up: Linear
    down: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    scale: float
    window: int


@dataclass(frozen=True)
class Decoder:
    """``cos`` and ``sin`` are (max_model_len, rotary dim), in the model's dtype."""

    embed: Linear
    layers: list[DecoderLayer]
    norm: Norm
    head: Linear
    cos: torch.Tensor
    sin: torch.Tensor
    num_heads: int


@torch.inference_mode()
def read_decoder(
    model: Any, max_model_len: int, head_dim: int, join: Callable[..., Linear] | None = None
) -> Decoder:
    """Reads the model's layers. ``join`` makes one of linear layers that have one input; without
    it, prepacking has made them so, or they stay apart. Raises UnsupportedDecoderError.
    """
    base = _child(model, model.base_model_prefix)
    _expect(base, _BASE)
    for layer in base.layers:
        _expect(layer, _LAYER)
    rules = attention_rules(model, base.rotary_emb, max_model_len)
    layers = [
        _layer(layer, rules[layer.self_attn], model.dtype, join or joined_by_prepacking)
        for layer in base.layers
    ]
    positions = torch.arange(max_model_len, device=model.device)
    cos, sin = angles(base.rotary_emb, positions, model.dtype)
    return Decoder(
        embed=base.embed_tokens,
        layers=layers,
        norm=_norm(base.norm, model.dtype),
        head=model.get_output_embeddings(),
        cos=cos,
        sin=sin,
        num_heads=base.layers[0].self_attn.o_proj.in_features // head_dim,
    )


def _child(module: Any, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        raise UnsupportedDecoderError(f"{type(module).__name__} has no {name}") from None


def _expect(module: Any, required: set[str], optional: frozenset[str] = frozenset()) -> None:
    kind, names = type(module).__name__, {name for name, _ in module.named_children()}
    if not required <= names or not names <= required | optional:
        raise UnsupportedDecoderError(f"{kind} is made of {', '.join(sorted(names))}")
    if own := [name for name, _ in module.named_parameters(recurse=False)]:
        raise UnsupportedDecoderError(f"{kind} has weights of its own: {', '.join(own)}")


def _layer(
    layer: Any, rule: tuple[float, int], dtype: torch.dtype, join: Callable[..., Linear]
) -> DecoderLayer:
    attention, mlp = layer.self_attn, layer.mlp
    _expect(attention, _ATTENTION, frozenset(_HEAD_NORMS))
    _expect(mlp, _MLP)
    _check_activation(mlp.act_fn)
    has_norms = hasattr(attention, "q_norm")
    return DecoderLayer(
        input_norm=_norm(layer.input_layernorm, dtype),
        qkv=_joined(join, attention.q_proj, attention.k_proj, attention.v_proj),
        output=attention.o_proj,
        mlp_norm=_norm(layer.post_attention_layernorm, dtype),
        gate_up=_joined(join, mlp.gate_proj, mlp.up_proj),
        down=mlp.down_proj,
        query_norm=_norm(attention.q_norm, dtype) if has_norms else None,
        key_norm=_norm(attention.k_norm, dtype) if has_norms else None,
        scale=rule[0],
        window=rule[1],
    )


def _norm(module: Any, dtype: torch.dtype) -> Norm:
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weights = list(module.parameters())
    if not isinstance(eps, float) or len(weights) != 1 or weights[0].dtype != dtype:
        raise UnsupportedDecoderError(f"{type(module).__name__} is no RMSNorm in {dtype}")
    weight = weights[0]
    return Norm(weight.detach().contiguous(), eps)


def _check_activation(activation: Any) -> None:
    x = torch.linspace(-4, 4, 9)
    if not torch.allclose(activation(x), torch.nn.functional.silu(x)):
        raise UnsupportedDecoderError(f"its activation is {type(activation).__name__}, not SiLU")


def _joined(join: Callable[..., Linear], *parts: Any) -> Linear:
    """Linear layers of one input as one, with the adapters of each."""
    return with_adapters(join(*map(without_adapters, parts)), parts)


def joined_by_prepacking(*parts: Any) -> Linear:
    """Linear layers of one input as one: prepacking's joint layer where there is one."""
    if all(isinstance(part, LinearPart) for part in parts):
        (first, *others) = (part.shared for part in parts)
        if all(shared is first for shared in others):
            linear: Linear = first.linear
            return linear
    return lambda x: torch.cat([part(x) for part in parts], dim=-1)

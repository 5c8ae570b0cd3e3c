"""Reads a transformers model as a decoder of Llama's shape: what each layer is made of.

Goes by what modules are called and hold, as Llama, Mistral, Qwen2, Qwen3, SmolLM and many others
have it. Whether the model computes nothing else is found out by trying (holding.py), not here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hf_runtime.prepacked_linear import LinearPart

Linear = Callable[[torch.Tensor], torch.Tensor]

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
# Those whose angles follow from the position alone.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_RECORDING = "hf_triton_recording"


class UnfitError(Exception):
    """The model has another shape; the text says where."""


@dataclass(frozen=True)
class Norm:
    """An RMSNorm's weight (size,) and its epsilon."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True)
class DecoderLayer:
    """``qkv``: (tokens, hidden) -> (tokens, (heads + 2 kv_heads) * dim); ``gate_up``: gates, then
    ups. ``window`` is 0 where every earlier token is seen.
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
def read_decoder(model: Any, max_model_len: int, head_dim: int) -> Decoder:
    """What the model is made of. Raises UnfitError."""
    base = _child(model, model.base_model_prefix)
    rules = _attention_rules(model)
    layers = [
        _layer(layer, rules[_child(layer, "self_attn")], model.dtype)
        for layer in _child(base, "layers")
    ]
    cos, sin = _angles(_child(base, "rotary_emb"), max_model_len, model)
    return Decoder(
        embed=_child(base, "embed_tokens"),
        layers=layers,
        norm=_norm(_child(base, "norm"), model.dtype),
        head=model.get_output_embeddings(),
        cos=cos,
        sin=sin,
        num_heads=_child(base, "layers")[0].self_attn.o_proj.in_features // head_dim,
    )


def _child(module: Any, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        raise UnfitError(f"{type(module).__name__} has no {name}") from None


def _expect(module: Any, required: set[str], optional: frozenset[str] = frozenset()) -> None:
    names = {name for name, _ in module.named_children()}
    if not required <= names or not names <= required | optional:
        raise UnfitError(f"{type(module).__name__} is made of {', '.join(sorted(names))}")


def _layer(layer: Any, rule: tuple[float, int], dtype: torch.dtype) -> DecoderLayer:
    _expect(layer, _LAYER)
    attention, mlp = layer.self_attn, layer.mlp
    _expect(attention, _ATTENTION, frozenset(_HEAD_NORMS))
    _expect(mlp, _MLP)
    _check_activation(mlp.act_fn)
    has_norms = hasattr(attention, "q_norm")
    return DecoderLayer(
        input_norm=_norm(layer.input_layernorm, dtype),
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        output=attention.o_proj,
        mlp_norm=_norm(layer.post_attention_layernorm, dtype),
        gate_up=_joined(mlp.gate_proj, mlp.up_proj),
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
        raise UnfitError(f"{type(module).__name__} is no RMSNorm in {dtype}")
    weight = weights[0]
    return Norm(weight.detach().contiguous(), eps)


def _check_activation(activation: Any) -> None:
    x = torch.linspace(-4, 4, 9)
    if not torch.allclose(activation(x), torch.nn.functional.silu(x)):
        raise UnfitError(f"its activation is {type(activation).__name__}, not SiLU")


def _joined(*parts: Any) -> Linear:
    """Linear layers of one input as one: the one that prepacking made of them where it did."""
    if all(isinstance(part, LinearPart) for part in parts):
        (first, *others) = (part.shared for part in parts)
        if all(shared is first for shared in others):
            linear: Linear = first.linear
            return linear
    return lambda x: torch.cat([part(x) for part in parts], dim=-1)


def _angles(rotary: Any, max_model_len: int, model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    kind = getattr(rotary, "rope_type", None)
    if kind not in _ROPE_TYPES:
        raise UnfitError(f"its rotary embedding is of the type {kind}")
    positions = torch.arange(max_model_len).unsqueeze(0)
    cos, sin = rotary(torch.zeros(1, dtype=model.dtype), position_ids=positions)
    return cos[0].contiguous(), sin[0].contiguous()


def _attention_rules(model: Any) -> dict[Any, tuple[float, int]]:
    """Attention module -> its scale and window, as the model itself gives them to an attention
    function.
    """
    from transformers import AttentionInterface

    rules: dict[Any, tuple[float, int]] = {}

    def record(module: Any, query: Any, key: Any, value: Any, mask: Any, **given: Any) -> Any:
        rules[module] = (given["scaling"], given.get("sliding_window") or 0)
        if given.get("softcap"):
            raise UnfitError("its attention has a soft cap")
        return query.transpose(1, 2), None

    AttentionInterface.register(_RECORDING, record)
    before = model.config._attn_implementation  # noqa: SLF001
    model.set_attn_implementation(_RECORDING)
    try:
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=False)
    finally:
        model.set_attn_implementation(before)
    return rules

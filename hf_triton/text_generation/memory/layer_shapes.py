"""Reads off a model what each layer keeps of a sequence: keys and values for each token, and states
of one size (Mamba, gated delta rules).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from hf_triton.runtime.errors import LoadError

LEN_WITHOUT_LIMIT = 2048
_RELATIVE_POSITIONS = "relative_attention_num_buckets"


@dataclass(frozen=True)
class StateShape:
    """A state of one sequence, (*shape,); a layer may keep several of a kind, by ``index``. Keys
    (index 0) and values (1) of an encoder's source are (heads, longest source, dim).
    """

    kind: str  # "conv", "recurrent" or "cross"
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class LayerShape:
    """The sizes that one layer keeps for each token and each sequence, and its device."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    states: tuple[StateShape, ...] = ()

    @property
    def bytes_per_token(self) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize

    @property
    def state_bytes(self) -> int:
        return sum(math.prod(state.shape) * state.dtype.itemsize for state in self.states)

    def with_longest_source(self, length: int) -> LayerShape:
        states = (
            replace(state, shape=(state.shape[0], length, state.shape[2])) for state in self.states
        )
        return replace(self, states=tuple(states))


def keep_states(shapes: Iterable[LayerShape]) -> bool:
    return any(shape.states for shape in shapes)


def sequence_bytes(shapes: list[LayerShape], num_tokens: int) -> int:
    return sum(shape.bytes_per_token * num_tokens + shape.state_bytes for shape in shapes)


def cache_argument(model: Any) -> str:
    names = inspect.signature(model.forward).parameters
    return "cache_params" if "cache_params" in names else "past_key_values"


def context_length(config: Any, *own: str) -> int | None:
    """The most tokens the model was made for, by its ``own`` names first; None without a limit
    (ALiBi).
    """
    names = [*own, "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"]
    if not getattr(config, "is_encoder_decoder", False):
        names.append("max_target_positions")  # Whisper's decoder alone
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def max_lengths(config: Any, max_model_len: int | None) -> tuple[int, int]:
    """The most tokens of an encoder-decoder's input and of its output; of a decoder, twice what it
    holds of both together.

    Raises:
        LoadError: ``max_model_len`` is above the model's own limit.
    """
    if config.is_encoder_decoder:
        longest_input, longest_output = _limit_of(config, "encoder"), _limit_of(config, "decoder")
    else:
        longest_input = longest_output = context_length(config.get_text_config())
    if max_model_len is not None and longest_input is not None and max_model_len > longest_input:
        raise LoadError(
            f"max_model_len: got {max_model_len}, the model's own limit is {longest_input} tokens"
        )
    if max_model_len is not None:
        return max_model_len, min(max_model_len, longest_output or max_model_len)
    usual = getattr(config, "n_positions", None)
    if not isinstance(usual, int) or usual <= 0:
        usual = LEN_WITHOUT_LIMIT
    return longest_input or usual, longest_output or usual


def _limit_of(config: Any, side: str) -> int | None:
    """The longest input of an encoder-decoder, or output; None where there is no limit."""
    own = getattr(config, side, None)
    if own is not None:  # a configuration of each side (EncoderDecoderModel, T5Gemma)
        return context_length(own.get_text_config())
    if hasattr(config, _RELATIVE_POSITIONS):
        return None  # T5's n_positions is only how long its training's texts were
    of_decoder = ("max_target_positions",) if side == "decoder" else ()  # Whisper
    return context_length(config, f"max_{side}_position_embeddings", *of_decoder)  # LED


@torch.inference_mode()
def layer_shapes(model: Any, device: torch.device) -> list[LayerShape]:
    """Runs two tokens through the model and looks at what each layer of transformers' cache kept.
    Leaves out trailing layers that keep nothing. Raises ValueError where a layer keeps anything but
    keys, values and states of transformers' own kinds, or none keeps anything.
    """
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
    try:
        model(input_ids=tokens, use_cache=True, **{cache_argument(model): cache})
    except AttributeError as error:
        if error.obj is not cache:
            raise
        raise ValueError(f"it needs a cache of its own, with {error.name}") from error
    shapes = [_layer_shape(cache, index, device) for index in range(len(cache))]
    while shapes and not shapes[-1].num_kv_heads and not shapes[-1].states:
        shapes.pop()
    if not shapes:
        raise ValueError("it keeps nothing of earlier tokens in the cache that it is given")
    return shapes


@torch.inference_mode()
def cross_layer_shapes(model: Any, encoder_outputs: Any, start: int) -> list[LayerShape]:
    """The layers of an encoder-decoder, for sources as long as the encoded one."""
    from transformers import DynamicCache, EncoderDecoderCache

    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    model(
        encoder_outputs=encoder_outputs,
        decoder_input_ids=torch.tensor([[start]], device=model.device),
        past_key_values=cache,
        use_cache=True,
    )
    own, cross = cache.self_attention_cache.layers, cache.cross_attention_cache.layers
    return [_cross_layer_shape(*layers) for layers in zip(own, cross, strict=True)]


def _cross_layer_shape(own: Any, cross: Any) -> LayerShape:
    keys, values = own.keys, own.values
    states = tuple(
        StateShape("cross", index, tuple(stored.shape[1:]), stored.dtype)
        for index, stored in enumerate((cross.keys, cross.values))
    )
    return LayerShape(
        keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device, states=states
    )


def _layer_shape(cache: Any, index: int, device: torch.device) -> LayerShape:
    layer = cache.layers[index] if index < len(cache.layers) else None
    is_foreign = layer is not None and type(layer).__module__ != "transformers.cache_utils"
    if is_foreign or hasattr(layer, "indexer_keys"):
        kind = type(layer).__name__
        raise ValueError(
            f"layer {index} keeps earlier tokens in a {kind}, which pages of keys and values "
            "don't hold"
        )
    states = tuple(
        StateShape(kind, index, tuple(state.shape[1:]), state.dtype)
        for kind in ("conv", "recurrent")
        for index, state in getattr(layer, f"{kind}_states", {}).items()
        if state is not None
    )
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None:
        device = getattr(layer, "device", None) or device
        return LayerShape(0, 0, 0, torch.float32, device, states=states)
    if keys.shape[:3] != values.shape[:3] or keys.shape[2] != 2:
        raise ValueError(
            f"layer {index} keeps {keys.shape[2]} keys and {values.shape[2]} values for 2 tokens; "
            "pages hold one of each"
        )
    sizes = (keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device)
    return LayerShape(*sizes, states=states)

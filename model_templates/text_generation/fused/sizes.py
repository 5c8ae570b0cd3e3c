"""Checks a decoder's sizes, dtypes and layouts before the kernels read and write at addresses.

The kernels check nothing: a tensor that is smaller than they were told, or laid out differently,
would make them read or write other memory.
"""

from __future__ import annotations

import torch

from .attention_rules import UnsupportedDecoderError
from .decoder import Decoder, DecoderLayer, Linear, Norm

_ROWS = 2


@torch.inference_mode()
def check_sizes(
    decoder: Decoder, stored: list[torch.Tensor], kv_heads: int, length: int, dtype: torch.dtype
) -> None:
    """Checks every layer against the others, ``stored``, which are all keys and values
    (..., head dim) of sequences of ``length`` tokens, and ``dtype``.

    Raises:
        UnsupportedDecoderError: one does not fit.
    """
    shape, dim = stored[0].shape, stored[0].shape[-1]
    if len(stored) != 2 * len(decoder.layers):
        raise UnsupportedDecoderError("not every layer keeps keys and values")
    if any(one.shape != shape or one.dtype != dtype for one in stored):
        raise UnsupportedDecoderError("its keys and values differ in size")
    rotary = decoder.cos.shape[1]
    if rotary % 2 or rotary > dim or decoder.cos.shape != (length, rotary):
        raise UnsupportedDecoderError(f"it rotates {rotary} of {dim} numbers")
    if decoder.num_heads % kv_heads:
        raise UnsupportedDecoderError(f"it has {decoder.num_heads} heads for {kv_heads} of keys")
    token_ids = torch.zeros(_ROWS, dtype=torch.int64, device=decoder.cos.device)
    hidden = _rows(decoder.embed, token_ids, dtype)
    _check_norm(decoder.norm, hidden.shape[1])
    for layer in decoder.layers:
        _check_layer(layer, hidden, (decoder.num_heads, kv_heads, dim))


def _check_layer(layer: DecoderLayer, hidden: torch.Tensor, sizes: tuple[int, int, int]) -> None:
    heads, kv_heads, dim = sizes
    size, dtype = hidden.shape[1], hidden.dtype
    for norm, norm_size in (
        *((layer.input_norm, size), (layer.mlp_norm, size)),
        *((layer.query_norm, dim), (layer.key_norm, dim)),
    ):
        _check_norm(norm, norm_size)
    _rows(layer.qkv, hidden, dtype, (heads + 2 * kv_heads) * dim)
    _rows(layer.output, hidden.new_zeros(_ROWS, heads * dim), dtype, size)
    inner = _rows(layer.gate_up, hidden, dtype).shape[1]
    _rows(layer.down, hidden.new_zeros(_ROWS, inner // 2), dtype, size)


def _check_norm(norm: Norm | None, size: int) -> None:
    if norm is not None and norm.weight.shape != (size,):
        raise UnsupportedDecoderError(f"a norm of {tuple(norm.weight.shape)} for {size} numbers")


def _rows(
    part: Linear, x: torch.Tensor, dtype: torch.dtype, size: int | None = None
) -> torch.Tensor:
    """What ``part`` makes of ``x``: contiguous rows of ``size`` numbers."""
    y = part(x)
    if y.dim() != 2 or len(y) != len(x) or (size is not None and y.shape[1] != size):
        raise UnsupportedDecoderError(f"a linear layer gives {tuple(y.shape)}, not rows of {size}")
    if y.dtype != dtype or not y.is_contiguous():
        raise UnsupportedDecoderError(f"a linear layer gives {y.dtype}, strided {y.stride()}")
    return y

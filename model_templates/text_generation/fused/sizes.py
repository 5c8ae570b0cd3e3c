"""Checks a decoder's sizes, dtypes and layouts before the kernels read and write at addresses.

The kernels check nothing: a tensor that is smaller than they were told, or laid out differently,
would make them read or write other memory.
"""

from __future__ import annotations

import torch

from .decoder import (
    Attention,
    Decoder,
    DecoderLayer,
    Linear,
    Mlp,
    Norm,
    UnsupportedDecoderError,
)

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
    token_ids = torch.zeros(_ROWS, dtype=torch.int64, device=decoder.norm.weight.device)
    hidden = _rows(decoder.embed, token_ids, dtype)
    _check_norm(decoder.norm, hidden.shape[1])
    positions = decoder.positions
    if positions is not None and (positions.shape[0] < length or positions.dtype != dtype):
        raise UnsupportedDecoderError(f"it has {len(positions)} positions for {length} tokens")
    for layer in decoder.layers:
        if layer.attention.num_heads != decoder.layers[0].attention.num_heads:
            raise UnsupportedDecoderError("its layers differ in the number of heads")
        _check_attention(layer.attention, hidden, (kv_heads, dim, length))
        _check_rest(layer, hidden)


def _check_attention(
    attention: Attention, hidden: torch.Tensor, sizes: tuple[int, int, int]
) -> None:
    kv_heads, dim, length = sizes
    heads, dtype = attention.num_heads, hidden.dtype
    if heads % kv_heads:
        raise UnsupportedDecoderError(f"it has {heads} heads for {kv_heads} of keys")
    _rows(attention.qkv, hidden, dtype, (heads + 2 * kv_heads) * dim)
    _rows(attention.output, hidden.new_zeros(_ROWS, heads * dim), dtype, hidden.shape[1])
    if attention.rotary is not None:
        cos = attention.rotary.cos
        if cos.shape[1] % 2 or cos.shape[1] > dim or len(cos) != length:
            raise UnsupportedDecoderError(f"it rotates {cos.shape[1]} of {dim} numbers")
        if cos.dtype not in (dtype, torch.float32):
            raise UnsupportedDecoderError(f"its rotary embedding is in {cos.dtype}")
    if attention.sinks is not None and attention.sinks.shape != (heads,):
        raise UnsupportedDecoderError(f"sinks of {tuple(attention.sinks.shape)} for {heads} heads")
    norms = attention.query_norm, attention.key_norm
    if any(norms) and not all(norms):
        raise UnsupportedDecoderError("it norms queries or keys alone")
    for norm, count in zip(norms, (heads, kv_heads), strict=True):
        if norm is not None:
            _check_head_norm(attention, norm, count, dim)


def _check_head_norm(attention: Attention, norm: Norm, heads: int, dim: int) -> None:
    if attention.norms_whole:
        if norm.weight.numel() != heads * dim or not norm.is_wide:
            raise UnsupportedDecoderError(f"a norm of {tuple(norm.weight.shape)} for {heads} heads")
    else:
        _check_norm(norm, dim)
    if (
        attention.is_interleaved
        and norm.is_wide
        and (attention.norms_whole or heads != attention.num_heads)
    ):
        raise UnsupportedDecoderError("it norms heads that lie apart")
    if norm.is_wide != attention.query_norm.is_wide:  # type: ignore[union-attr]
        raise UnsupportedDecoderError("it norms queries and keys in two ways")


def _check_rest(layer: DecoderLayer, hidden: torch.Tensor) -> None:
    size, dtype, mlp = hidden.shape[1], hidden.dtype, layer.mlp
    for norm in (
        *(layer.attention_norm, layer.attention_post_norm),
        *(layer.mlp_norm, layer.mlp_post_norm),
    ):
        _check_norm(norm, size)
    if not isinstance(mlp, Mlp):
        _rows(mlp, hidden, dtype, size)
        return
    inner = _rows(mlp.up, hidden, dtype).shape[1]
    inner = inner // 2 if mlp.is_gated else inner
    _rows(mlp.down, hidden.new_zeros(_ROWS, inner), dtype, size)


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

"""Checks the sizes, dtypes and layouts of layers before the kernels read and write at addresses.

The kernels check nothing: a tensor that is smaller than they were told, or laid out differently,
would make them read or write other memory.
"""

from __future__ import annotations

import torch

from .parts import Attention, Body, Layer, Linear, Mlp, Norm, UnsupportedLayersError

ROWS = 2


def check_body(body: Body, sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Checks every layer against the others; ``sizes``: heads of keys, numbers in a head, the
    longest sequence. Raises UnsupportedLayersError.
    """
    embedding, weight = body.embedding, body.embedding.tokens.weight  # type: ignore[attr-defined]
    token_ids = torch.zeros(ROWS, dtype=torch.int64, device=weight.device)
    hidden = rows_of(embedding.tokens, token_ids, dtype)
    for table in (embedding.positions, embedding.types):
        if table is not None and (table.dtype != dtype or table.shape[1] != hidden.shape[1]):
            raise UnsupportedLayersError(f"a table of {tuple(table.shape)} in {table.dtype}")
    check_norm(embedding.norm, hidden.shape[1])
    if embedding.projection is not None:
        hidden = rows_of(embedding.projection, hidden, dtype)
    check_norm(body.norm, hidden.shape[1])
    for layer in body.layers:
        _check_attention(layer.attention, hidden, sizes)
        _check_rest(layer, hidden)


def _check_attention(
    attention: Attention, hidden: torch.Tensor, sizes: tuple[int, int, int]
) -> None:
    kv_heads, dim, length = sizes
    heads, dtype = attention.num_heads, hidden.dtype
    if heads % kv_heads:
        raise UnsupportedLayersError(f"it has {heads} heads for {kv_heads} of keys")
    rows_of(attention.qkv, hidden, dtype, (heads + 2 * kv_heads) * dim)
    rows_of(attention.output, hidden.new_zeros(ROWS, heads * dim), dtype, hidden.shape[1])
    if attention.rotary is not None:
        cos = attention.rotary.cos
        if cos.shape[1] % 2 or cos.shape[1] > dim or len(cos) != length:
            raise UnsupportedLayersError(f"it rotates {cos.shape[1]} of {dim} numbers")
        if cos.dtype not in (dtype, torch.float32):
            raise UnsupportedLayersError(f"its rotary embedding is in {cos.dtype}")
    if attention.sinks is not None and attention.sinks.shape != (heads,):
        raise UnsupportedLayersError(f"sinks of {tuple(attention.sinks.shape)} for {heads} heads")
    norms = attention.query_norm, attention.key_norm
    if any(norms) and not all(norms):
        raise UnsupportedLayersError("it norms queries or keys alone")
    for norm, count in zip(norms, (heads, kv_heads), strict=True):
        if norm is not None:
            _check_head_norm(attention, norm, count, dim)


def _check_head_norm(attention: Attention, norm: Norm, heads: int, dim: int) -> None:
    if attention.norms_whole:
        if norm.weight.numel() != heads * dim or not norm.is_wide:
            raise UnsupportedLayersError(f"a norm of {tuple(norm.weight.shape)} for {heads} heads")
    else:
        check_norm(norm, dim)
    if (
        attention.is_interleaved
        and norm.is_wide
        and (attention.norms_whole or heads != attention.num_heads)
    ):
        raise UnsupportedLayersError("it norms heads that lie apart")
    if norm.is_wide != attention.query_norm.is_wide:  # type: ignore[union-attr]
        raise UnsupportedLayersError("it norms queries and keys in two ways")


def _check_rest(layer: Layer, hidden: torch.Tensor) -> None:
    size, dtype, mlp = hidden.shape[1], hidden.dtype, layer.mlp
    for norm in (
        *(layer.attention_norm, layer.attention_post_norm),
        *(layer.mlp_norm, layer.mlp_post_norm),
    ):
        check_norm(norm, size)
    if not isinstance(mlp, Mlp):
        rows_of(mlp, hidden, dtype, size)
        return
    inner = rows_of(mlp.up, hidden, dtype).shape[1]
    inner = inner // 2 if mlp.is_gated else inner
    rows_of(mlp.down, hidden.new_zeros(ROWS, inner), dtype, size)


def check_norm(norm: Norm | None, size: int) -> None:
    """Raises UnsupportedLayersError where it is not of ``size`` numbers."""
    if norm is not None and norm.weight.shape != (size,):
        raise UnsupportedLayersError(f"a norm of {tuple(norm.weight.shape)} for {size} numbers")


def rows_of(
    part: Linear, x: torch.Tensor, dtype: torch.dtype, size: int | None = None
) -> torch.Tensor:
    """What ``part`` makes of ``x``: contiguous rows of ``size`` numbers."""
    y = part(x)
    if y.dim() != 2 or len(y) != len(x) or (size is not None and y.shape[1] != size):
        raise UnsupportedLayersError(f"a linear layer gives {tuple(y.shape)}, not rows of {size}")
    if y.dtype != dtype or not y.is_contiguous():
        raise UnsupportedLayersError(f"a linear layer gives {y.dtype}, strided {y.stride()}")
    return y

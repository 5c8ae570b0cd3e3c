"""What a decoder of Llama's shape computes between its matrix products, in OpenAI Triton.

Each computes in float32 and rounds what it writes; sums of the residual are rounded before their
norm is taken, as in the model. Where the interpreter runs them, kernels call no other function of
ours (launching.py).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_rms_norm(
    hidden_ptr,
    delta_ptr,
    weight_ptr,
    out_ptr,
    eps,
    SIZE: tl.constexpr,
    SIZE_P: tl.constexpr,
    HAS_DELTA: tl.constexpr,
):
    """Adds delta to hidden (tokens, SIZE) in place; out is its RMSNorm. Grid (tokens,)."""
    column = tl.arange(0, SIZE_P)
    mask = column < SIZE
    at = tl.program_id(0).to(tl.int64) * SIZE + column
    x = tl.load(hidden_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_DELTA:
        x += tl.load(delta_ptr + at, mask=mask, other=0.0).to(tl.float32)
        rounded = x.to(hidden_ptr.dtype.element_ty)
        tl.store(hidden_ptr + at, rounded, mask=mask)
        x = rounded.to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, (x * weight).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "positions_ptr"])
def rotate_and_store(
    qkv_ptr,
    keys_ptr,
    values_ptr,
    rows_ptr,
    positions_ptr,
    cos_ptr,
    sin_ptr,
    norms_ptr,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    HALF_P: tl.constexpr,
    REST_P: tl.constexpr,
    BLOCK_H: tl.constexpr,
    HAS_NORMS: tl.constexpr,
):
    """Normalises (HAS_NORMS) and rotates the queries and keys of qkv (tokens, (HEADS + 2 KV_HEADS)
    * DIM), and writes keys and values to their rows of the cache; queries stay in qkv.

    The first ROTARY numbers of a head turn, in pairs half of ROTARY apart, by cos and sin
    (positions, ROTARY), whose halves are alike. norms (3, DIM) are the weights of the queries' and
    the keys' norm, and ones. One thread reads and writes both of a pair: what is computed in place
    has no race. Grid (tokens, cdiv(HEADS + 2 KV_HEADS, BLOCK_H)).
    """
    HALF: tl.constexpr = ROTARY // 2
    token = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    is_head = head < HEADS + 2 * KV_HEADS
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = is_head & (head >= HEADS + KV_HEADS)
    column = tl.arange(0, HALF_P)
    in_half = is_head[:, None] & (column[None, :] < HALF)
    at = token.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * DIM) + head * DIM
    at_half = qkv_ptr + at[:, None] + column[None, :]
    first = tl.load(at_half, mask=in_half, other=0.0).to(tl.float32)
    second = tl.load(at_half + HALF, mask=in_half, other=0.0).to(tl.float32)
    if REST_P > 0:
        rest_column = ROTARY + tl.arange(0, REST_P)
        in_rest = is_head[:, None] & (rest_column[None, :] < DIM)
        at_rest = qkv_ptr + at[:, None] + rest_column[None, :]
        rest = tl.load(at_rest, mask=in_rest, other=0.0).to(tl.float32)

    if HAS_NORMS:
        square = tl.sum(first * first + second * second, 1)
        if REST_P > 0:
            square += tl.sum(rest * rest, 1)
        size = tl.where(is_value, 1.0, tl.rsqrt(square / DIM + eps))[:, None]
        norm = norms_ptr + tl.where(is_value, 2, tl.where(is_key, 1, 0))[:, None] * DIM
        weight_at = norm + column[None, :]
        first *= size * tl.load(weight_at, mask=in_half, other=0.0).to(tl.float32)
        second *= size * tl.load(weight_at + HALF, mask=in_half, other=0.0).to(tl.float32)
        if REST_P > 0:
            weight = tl.load(norm + rest_column[None, :], mask=in_rest, other=0.0)
            rest *= size * weight.to(tl.float32)

    turn_at = tl.load(positions_ptr + token).to(tl.int64) * ROTARY + column
    cos = tl.load(cos_ptr + turn_at, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + turn_at, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    cos = tl.where(is_value[:, None], 1.0, cos)
    sin = tl.where(is_value[:, None], 0.0, sin)
    turned = first * cos - second * sin
    second = second * cos + first * sin
    first = turned

    kind = qkv_ptr.dtype.element_ty
    row = tl.load(rows_ptr + token).to(tl.int64)
    key_at = keys_ptr + (row * KV_HEADS + head - HEADS)[:, None] * DIM
    value_at = values_ptr + (row * KV_HEADS + head - HEADS - KV_HEADS)[:, None] * DIM
    in_query = in_half & (head < HEADS)[:, None]
    in_key = in_half & is_key[:, None]
    in_value = in_half & is_value[:, None]
    tl.store(at_half, first.to(kind), mask=in_query)
    tl.store(at_half + HALF, second.to(kind), mask=in_query)
    tl.store(key_at + column[None, :], first.to(kind), mask=in_key)
    tl.store(key_at + HALF + column[None, :], second.to(kind), mask=in_key)
    tl.store(value_at + column[None, :], first.to(kind), mask=in_value)
    tl.store(value_at + HALF + column[None, :], second.to(kind), mask=in_value)
    if REST_P > 0:
        tl.store(at_rest, rest.to(kind), mask=in_rest & (head < HEADS)[:, None])
        tl.store(key_at + rest_column[None, :], rest.to(kind), mask=in_rest & is_key[:, None])
        tl.store(value_at + rest_column[None, :], rest.to(kind), mask=in_rest & is_value[:, None])


@triton.jit
def silu_mul(gate_up_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """silu(gate) * up of gate_up (tokens, 2 SIZE), gates first. Grid (tokens, cdiv(SIZE,
    BLOCK)).
    """
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < SIZE
    token = tl.program_id(0).to(tl.int64)
    at = gate_up_ptr + token * (2 * SIZE) + column
    gate = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(at + SIZE, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1 + tl.exp(-gate)) * up
    tl.store(out_ptr + token * SIZE + column, out.to(out_ptr.dtype.element_ty), mask=mask)

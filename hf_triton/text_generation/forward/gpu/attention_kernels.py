"""Attention over a paged cache, in OpenAI Triton.

Scores, sums and weights are float32, whatever the memory's dtype. The softmax is the online one of
https://arxiv.org/abs/2205.14135, in powers of two; a decode's context is split over programs and
joined as in https://pytorch.org/blog/flash-decoding.

Where the interpreter runs them, kernels call no other function of ours (launching.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)
_LOWEST = tl.constexpr(-1e30)  # of a maximum; finite, so that no difference of two is NaN


@triton.jit(
    do_not_specialize=["num_seqs", "num_splits"],
    # Views of a step's one buffer: a step may lie in any of four ways, each compiled by itself.
    do_not_specialize_on_alignment=["starts_ptr", "lengths_ptr", "first_page_ptr", "pages_ptr"],
)
def paged_attention(
    q_ptr,
    keys_ptr,
    values_ptr,
    out_ptr,
    parts_ptr,
    lse_ptr,
    sinks_ptr,
    starts_ptr,
    lengths_ptr,
    first_page_ptr,
    pages_ptr,
    num_seqs,
    num_splits,
    scale,
    q_stride,
    q_head_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_P: tl.constexpr,
    VALUE_P: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_DECODE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attends with the query heads of one key head: of one sequence's single token (IS_DECODE), or
    of BLOCK_M // GROUP tokens of a sequence that has more than one.

    A row of the tile is a token and a query head. Decodes: grid (num_seqs, KV_HEADS, num_splits);
    each split leaves its part, in float32, and log2 of its sum to join_splits. Others: grid
    (num_tokens // BLOCK_Q + num_seqs, KV_HEADS): no more tiles than that whatever the lengths.
    Sequences of length 0 get zeros.
    """
    BLOCK_Q: tl.constexpr = 1 if IS_DECODE else BLOCK_M // GROUP
    head = tl.program_id(1)
    part = tl.program_id(2)
    seq = tl.program_id(0)
    tile = 0
    if not IS_DECODE:
        # The last sequence whose first tile is not after this one: sequence s begins at tile
        # starts[s] // BLOCK_Q + s.
        number = tl.program_id(0)
        seq = 0
        above = num_seqs
        while above - seq > 1:
            middle = (seq + above) // 2
            begins = tl.load(starts_ptr + middle) // BLOCK_Q + middle
            seq = tl.where(begins <= number, middle, seq)
            above = tl.where(begins <= number, above, middle)
        tile = number - (tl.load(starts_ptr + seq) // BLOCK_Q + seq)
    start = tl.load(starts_ptr + seq)
    num_queries = tl.load(starts_ptr + seq + 1) - start
    is_beyond = tile * BLOCK_Q >= num_queries
    if num_queries != 1 if IS_DECODE else (num_queries == 1) | is_beyond:
        return

    length = tl.load(lengths_ptr + seq)
    rows = tl.arange(0, BLOCK_M)
    token = tile * BLOCK_Q + rows // GROUP
    q_head = head * GROUP + rows % GROUP
    is_row = (rows < BLOCK_Q * GROUP) & (token < num_queries)
    position = length - num_queries + token
    key_column = tl.arange(0, KEY_P)
    value_column = tl.arange(0, VALUE_P)
    q_at = (start + token).to(tl.int64) * q_stride + q_head * q_head_stride
    q = tl.load(
        q_ptr + q_at[:, None] + key_column[None, :],
        mask=is_row[:, None] & (key_column[None, :] < KEY_DIM),
        other=0.0,
    )
    if UPCAST:
        q = q.to(tl.float32)

    begin = 0
    end = tl.minimum(length, length - num_queries + (tile + 1) * BLOCK_Q)
    if WINDOW > 0:
        begin = tl.maximum(0, length - num_queries + tile * BLOCK_Q - WINDOW + 1)
    if IS_SPLIT:
        num_blocks = (end - begin + BLOCK_N - 1) // BLOCK_N
        share = (num_blocks + num_splits - 1) // num_splits * BLOCK_N
        begin += part * share
        end = tl.minimum(end, begin + share)

    top = tl.full((BLOCK_M,), _LOWEST, tl.float32)
    total = tl.full((BLOCK_M,), 0.0, tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + q_head, mask=is_row, other=0.0).to(tl.float32)
        top = tl.where(part == 0, sink * _LOG2_E, top)
        total = tl.where(part == 0, 1.0, total)
    acc = tl.full((BLOCK_M, VALUE_P), 0.0, tl.float32)
    pages_ptr += tl.load(first_page_ptr + seq)
    for at in range(begin, end, BLOCK_N):
        column = at + tl.arange(0, BLOCK_N)
        inside = column < end
        page = tl.load(pages_ptr + column // PAGE, mask=inside, other=0).to(tl.int64)
        stored = (page * PAGE + column % PAGE) * KV_HEADS + head
        k = tl.load(
            keys_ptr + stored[:, None] * KEY_DIM + key_column[None, :],
            mask=inside[:, None] & (key_column[None, :] < KEY_DIM),
            other=0.0,
        )
        v = tl.load(
            values_ptr + stored[:, None] * VALUE_DIM + value_column[None, :],
            mask=inside[:, None] & (value_column[None, :] < VALUE_DIM),
            other=0.0,
        )
        if UPCAST:
            k = k.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if SOFTCAP > 0:
            # cap * tanh(scores / cap); a large power is infinite, and its fraction 0
            scores = SOFTCAP - 2 * SOFTCAP / (1 + tl.exp2(scores * (2 * _LOG2_E / SOFTCAP)))
        scores *= _LOG2_E
        visible = inside[None, :]
        if not IS_DECODE:
            visible = visible & (column[None, :] <= position[:, None])
            if WINDOW > 0:
                visible = visible & (column[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        weights = weights.to(v.dtype)
        if UPCAST:
            weights = weights.to(tl.float32)
            v = v.to(tl.float32)
        acc = tl.dot(weights, v, acc * shrink[:, None], input_precision=PRECISION)
        top = new_top

    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    is_out = is_row[:, None] & (value_column[None, :] < VALUE_DIM)
    if IS_SPLIT:
        at_part = (seq * num_splits + part) * KV_HEADS * GROUP + q_head
        tl.store(parts_ptr + at_part[:, None] * VALUE_DIM + value_column[None, :], out, mask=is_out)
        tl.store(lse_ptr + at_part, top + tl.log2(total), mask=is_row)
    else:
        out_at = (start + token).to(tl.int64) * (KV_HEADS * GROUP) + q_head
        out_at = out_at[:, None] * VALUE_DIM + value_column[None, :]
        tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=is_out)


@triton.jit(do_not_specialize_on_alignment=["starts_ptr"])
def join_splits(
    parts_ptr,
    lse_ptr,
    out_ptr,
    starts_ptr,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_P: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Weighs the parts of a decode's attention by their sums. Grid (num_seqs, HEADS)."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(starts_ptr + seq)
    if tl.load(starts_ptr + seq + 1) - start != 1:
        return
    at = (seq * SPLITS + tl.arange(0, SPLITS)) * HEADS + head
    lse = tl.load(lse_ptr + at)
    weights = tl.exp2(lse - tl.maximum(tl.max(lse, 0), _LOWEST))
    column = tl.arange(0, VALUE_P)
    parts = tl.load(
        parts_ptr + at[:, None] * VALUE_DIM + column[None, :],
        mask=(column[None, :] < VALUE_DIM) & (weights[:, None] > 0),
        other=0.0,
    )
    total = tl.sum(weights, 0)
    out = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    out_at = (start.to(tl.int64) * HEADS + head) * VALUE_DIM + column
    tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=column < VALUE_DIM)

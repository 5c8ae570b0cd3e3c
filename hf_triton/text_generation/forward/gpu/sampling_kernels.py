"""Draws tokens from logits, in OpenAI Triton: what sampling/random_sampling.py says, without a
temporary of the vocabulary's size.

Where the interpreter runs it, a kernel calls no other function of ours (launching.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

_BITS_OF_INFINITY = tl.constexpr(0x7F800000)


@triton.jit(
    do_not_specialize=["num_drawn"],
    do_not_specialize_on_alignment=["rows_ptr", "numbers_ptr", "top_k_ptr", "token_ids_ptr"],
)
def draw(
    logits_ptr,
    rows_ptr,
    numbers_ptr,
    top_k_ptr,
    token_ids_ptr,
    vocab_size,
    num_drawn,
    BLOCK: tl.constexpr,
):
    """Draws a token from one row of logits (rows, vocab_size). Grid (num_drawn,).

    A token's distance is how far its logit lies below the row's largest, over the temperature; its
    weight is exp(-distance). Distances are ordered as their bits are as integers, so what filters
    keep is found by bisection over those.
    """
    number = tl.program_id(0)
    row = tl.load(rows_ptr + number)
    logits_ptr += row * vocab_size
    scale = 1.0 / tl.load(numbers_ptr + number)
    uniform = tl.load(numbers_ptr + num_drawn + number)
    top_p = tl.load(numbers_ptr + 2 * num_drawn + number)
    min_p = tl.load(numbers_ptr + 3 * num_drawn + number)
    top_k = tl.load(top_k_ptr + number)
    lane = tl.arange(0, BLOCK)

    tops = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        column = start + lane
        x = tl.load(logits_ptr + column, mask=column < vocab_size, other=float("-inf"))
        tops = tl.maximum(tops, x.to(tl.float32))
    top = tl.max(tops, axis=0)

    # The farthest that top_k keeps: the least distance within which top_k tokens lie.
    farthest = tl.full((), _BITS_OF_INFINITY, tl.int32)
    least = tl.where(top_k > 0, 0, farthest)
    num_within = top_k
    while least < farthest:
        middle = least + (farthest - least) // 2
        counts = tl.full((BLOCK,), 0, tl.int32)
        for start in range(0, vocab_size, BLOCK):
            column = start + lane
            x = tl.load(logits_ptr + column, mask=column < vocab_size, other=float("-inf"))
            distance = (top - x.to(tl.float32)) * scale
            counts += (distance.to(tl.int32, bitcast=True) <= middle).to(tl.int32)
        count = tl.sum(counts, axis=0)
        least = tl.where(count > top_k, least, tl.where(count == top_k, middle, middle + 1))
        farthest = tl.where(count >= top_k, middle, farthest)
        num_within = tl.where(count >= top_k, count, num_within)

    # The farthest that top_p keeps of those: the least distance within which its share of their
    # weight lies, where of several as far as the last only as many count as top_k asks for. The
    # first round weighs them all.
    excess = (num_within - top_k) * tl.exp(-farthest.to(tl.float32, bitcast=True))
    least = tl.where(top_p > 0, 0, farthest)
    num_nearer, num_within = 0, 2  # tokens; once only one is between, the bits do not matter
    middle = farthest
    share = float("inf")
    while (least < farthest) & (num_within - num_nearer > 1):
        weights = tl.full((BLOCK,), 0.0, tl.float32)
        counts = tl.full((BLOCK,), 0, tl.int32)
        for start in range(0, vocab_size, BLOCK):
            column = start + lane
            x = tl.load(logits_ptr + column, mask=column < vocab_size, other=float("-inf"))
            distance = (top - x.to(tl.float32)) * scale
            is_within = distance.to(tl.int32, bitcast=True) <= middle
            weights += tl.where(is_within, tl.exp(-distance), 0.0)
            counts += is_within.to(tl.int32)
        weight, count = tl.sum(weights, axis=0), tl.sum(counts, axis=0)
        is_first = share == float("inf")
        is_enough = is_first | (weight >= share)
        least = tl.where(is_enough, least, middle + 1)
        farthest = tl.where(is_enough, middle, farthest)
        num_nearer = tl.where(is_enough, num_nearer, count)
        num_within = tl.where(is_enough, count, num_within)
        share = tl.where(is_first, top_p * (weight - excess), share)
        middle = least + (farthest - least) // 2

    weights = tl.full((BLOCK,), 0.0, tl.float32)
    for start in range(0, vocab_size, BLOCK):
        column = start + lane
        x = tl.load(logits_ptr + column, mask=column < vocab_size, other=float("-inf"))
        distance = (top - x.to(tl.float32)) * scale
        weight = tl.exp(-distance)
        is_kept = (distance.to(tl.int32, bitcast=True) <= farthest) & (weight >= min_p)
        weights += tl.where(is_kept, weight, 0.0)
    target = uniform * tl.sum(weights, axis=0)

    # The first token whose weight and those before it are more than the target together; where
    # rounding leaves none, the last one that is kept.
    before = 0.0
    token = vocab_size - 1
    start = 0
    while start < vocab_size:
        column = start + lane
        x = tl.load(logits_ptr + column, mask=column < vocab_size, other=float("-inf"))
        distance = (top - x.to(tl.float32)) * scale
        weight = tl.exp(-distance)
        is_kept = (distance.to(tl.int32, bitcast=True) <= farthest) & (weight >= min_p)
        weight = tl.where(is_kept, weight, 0.0)
        last = tl.max(tl.where(weight > 0, column, -1), axis=0)
        token = tl.where(last >= 0, last, token)
        after = before + tl.sum(weight, axis=0)
        start += BLOCK
        if after > target:
            is_beyond = (weight > 0) & (before + tl.cumsum(weight, axis=0) > target)
            first = vocab_size - tl.max(tl.where(is_beyond, vocab_size - column, 0), axis=0)
            token = tl.minimum(token, first)
            start = vocab_size
        before = after
    tl.store(token_ids_ptr + row, token)

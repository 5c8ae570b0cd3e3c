"""Finds the largest logit, or draws a token: temperature, top-k, top-p, min-p, then a uniform
number chooses in the order of the vocabulary. text_generation/sampling/random_sampling.py does the
same by torch.

Arguments are as in kernels.py. A score is (logit - largest) / temperature, a weight e to it. Few
tokens of a vocabulary are likely, and the largest logits of its blocks tell where they are: nothing
is computed of the others but, where there is no top-k, the sum of their weights.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .kernels import (
    exp,
    float32_at,
    integers_at,
    larger,
    load,
    of_bits,
    own,
    size_bits,
    store,
    take_wide_vectors,
    tasks,
)

_BLOCK = 256
# Top-p first looks at the tokens that are as likely as the largest of so many blocks.
_FIRST_BLOCKS = np.float32(32)
_ZERO, _ONE, _LOWEST, _NAN = np.float32(0), np.float32(1), np.float32(-np.inf), np.float32(np.nan)
_INFINITY = np.int32(0x7F800000)  # size_bits of it
_LEAST = np.float32(-87)  # e to less is no normal float32
_LN2, _EXPONENT, _BIAS = np.float32(0.6931472), np.int32(23), np.int32(127)
_SUMS = {"reassoc", "contract", "nsz"}


@njit(error_model="numpy")
def _argmax(a, at):
    """2 rows, 3 size, 4 x (rows, size), 5 out (rows,) int64, 6 scratch (threads, size) float32:
    where the first of the largest is, or the first NaN.
    """
    rows, size, x, out = a[2], a[3], at(a[4]), integers_at(a[5])
    maxima = float32_at(own(a, a[6], 4 * size))
    for row in tasks(a, rows):
        largest = _block_maxima(x, row * size, size, maxima)
        out[row] = _place_of(x, row * size, size, largest, maxima)


@njit(error_model="numpy")
def _draw(a, at):
    """2 drawn rows, 3 size, 4 x (rows, size), 5 which rows (drawn,) int64, 6 numbers (4, drawn)
    float32: temperature, uniform number, top_p or 0, min_p or 0; 7 top_k (drawn,) int64 or 0, 8 out
    (drawn,) int64, 9 scratch (threads, 4 size) float32: a token each, or the place of the largest
    where that is not finite, of NaN where there is one.
    """
    drawn, size, x = a[2], a[3], at(a[4])
    which, numbers, ks = integers_at(a[5]), float32_at(a[6]), integers_at(a[7])
    tokens, mine = integers_at(a[8]), own(a, a[9], 16 * size)
    scores, weights = float32_at(mine), float32_at(mine + 4 * size)
    maxima, sums = float32_at(mine + 8 * size), float32_at(mine + 12 * size)
    num_blocks = (size + _BLOCK - 1) // _BLOCK
    for row in tasks(a, drawn):
        temperature, uniform = load(numbers, row), load(numbers, drawn + row)
        top_p, min_p = load(numbers, 2 * drawn + row), load(numbers, 3 * drawn + row)
        first, k = which[row] * size, ks[row]
        largest = _block_maxima(x, first, size, maxima)
        if largest - largest != _ZERO:
            tokens[row] = _place_of(x, first, size, largest, maxima)
            continue
        for block in range(num_blocks):
            store(maxima, block, (load(maxima, block) - largest) / temperature)
        least, bound, mass, count = _LOWEST, _LOWEST, 0.0, 0
        if k > 0:
            if k < num_blocks:
                bound = _threshold(maxima, num_blocks, np.float32(k), False, weights)
            count = _likeliest(x, first, size, largest, temperature, bound, maxima, scores)
            least = _threshold(scores, count, np.float32(k), False, weights)
            mass = _mass(scores, count, least, k)
        elif top_p > _ZERO:
            mass = _block_weights(x, first, size, largest, temperature, least, _ZERO, maxima, sums)
            if num_blocks > _FIRST_BLOCKS:
                bound = _threshold(maxima, num_blocks, _FIRST_BLOCKS, False, weights)
            count = _likeliest(x, first, size, largest, temperature, bound, maxima, scores)
            if _mass(scores, count, _LOWEST, count) < top_p * mass:
                # All that weigh less than this are together less than what top-p leaves out.
                bound = _log_below(np.float32((1.0 - top_p) * mass / size))
                count = _likeliest(x, first, size, largest, temperature, bound, maxima, scores)
        if top_p > _ZERO:
            goal = top_p * np.float32(mass)
            least = max(least, bound, _threshold(scores, count, goal, True, weights))
        total = _block_weights(x, first, size, largest, temperature, least, min_p, maxima, sums)
        limit, cumulative, block = _limit(total, uniform), 0.0, 0
        while np.float32(cumulative + load(sums, block)) <= limit and block < num_blocks - 1:
            cumulative, block = cumulative + load(sums, block), block + 1
        last = block * _BLOCK
        for i in range(block * _BLOCK, min(size, (block + 1) * _BLOCK)):
            score = (load(x, first + i) - largest) / temperature
            weight = _weight(score)
            if score >= least and weight >= min_p and weight > _ZERO:
                cumulative, last = cumulative + weight, i
                if np.float32(cumulative) > limit:
                    break
        tokens[row] = last


@njit(error_model="numpy", inline="always")
def _weight(score):
    return exp(score) if score > _LEAST else _ZERO


@njit(error_model="numpy")
def _block_maxima(x, first, size, maxima):
    """The largest of each block; returns the largest of all, NaN where any is."""
    take_wide_vectors()
    largest, bits = _LOWEST, np.int32(0)
    for begin in range(0, size, _BLOCK):
        most = load(x, first + begin)
        for i in range(begin, min(size, begin + _BLOCK)):
            value = load(x, first + i)
            most, here = larger(value, most), size_bits(value)
            bits = here if here > bits else bits
        store(maxima, begin // _BLOCK, most)
        largest = larger(most, largest)
    return _NAN if bits > _INFINITY else largest


@njit(error_model="numpy")
def _place_of(x, first, size, largest, maxima):
    """The first index of the largest, or of a NaN."""
    for begin in range(0, size, _BLOCK):
        if load(maxima, begin // _BLOCK) == largest or largest != largest:
            for i in range(begin, min(size, begin + _BLOCK)):
                found = load(x, first + i)
                if found == largest or found != found:
                    return i
    return 0


@njit(error_model="numpy")
def _likeliest(x, first, size, largest, temperature, bound, maxima, scores):
    """The scores from ``bound`` on; returns how many. ``maxima`` are the blocks' largest scores."""
    count = 0
    for begin in range(0, size, _BLOCK):
        if load(maxima, begin // _BLOCK) >= bound:
            for i in range(begin, min(size, begin + _BLOCK)):
                score = (load(x, first + i) - largest) / temperature
                store(scores, count, score)
                count += 1 if score >= bound else 0
    return count


@njit(fastmath=_SUMS, error_model="numpy")
def _threshold(scores, count, goal, by_weight, weights):
    """The largest score that reaches ``goal`` together with all above it: so many scores, or so
    much weight; the lowest where all together do not. Bisects the bits of scores, none above 0.
    """
    take_wide_vectors()
    for i in range(count):
        store(weights, i, _weight(load(scores, i)) if by_weight else _ONE)
    low, high = np.int32(-1), _INFINITY
    while high - low > 1:
        middle, total = np.int32((low + high) >> 1), _ZERO
        for i in range(count):
            total += load(weights, i) if size_bits(load(scores, i)) <= middle else _ZERO
        if total >= goal:
            high = middle
        else:
            low = middle
    return -of_bits(high)


@njit(error_model="numpy")
def _mass(scores, count, least, k):
    """The weight of the ``k`` largest scores, the last of which is ``least``."""
    total, kept = 0.0, 0
    for i in range(count):
        score = load(scores, i)
        if score >= least:
            total, kept = total + _weight(score), kept + 1
    return total - (kept - k) * np.float64(_weight(least))


@njit(error_model="numpy", inline="always")
def _log_below(value):
    """Up to 2 below the logarithm of ``value``: that of its exponent."""
    return np.float32((size_bits(value) >> _EXPONENT) - _BIAS) * _LN2 - _ONE


@njit(error_model="numpy", inline="always")
def _limit(total, uniform):
    """Below the total, so that a token exceeds it."""
    whole = np.float32(total)
    limit, below = uniform * whole, of_bits(size_bits(whole) - np.int32(1))
    return limit if limit < below else below


@njit(fastmath=_SUMS, error_model="numpy")
def _block_weight(x, begin, end, largest, temperature, least, min_p):
    take_wide_vectors()
    total = _ZERO
    for i in range(begin, end):
        score = (load(x, i) - largest) / temperature
        weight = _weight(score)
        weight = weight if score >= least else _ZERO
        total += weight if weight >= min_p else _ZERO
    return total


@njit(error_model="numpy")
def _block_weights(x, first, size, largest, temperature, least, min_p, maxima, sums):
    """Stores the weight of each block's kept tokens in ``sums``; returns the weight of all."""
    total = 0.0
    for begin in range(0, size, _BLOCK):
        weight, end = _ZERO, first + min(size, begin + _BLOCK)
        if load(maxima, begin // _BLOCK) >= least:
            weight = _block_weight(x, first + begin, end, largest, temperature, least, min_p)
        store(sums, begin // _BLOCK, weight)
        total += weight
    return total

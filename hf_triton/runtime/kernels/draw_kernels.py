"""Draws tokens from logits: temperature, top-k, top-p, min-p, then a uniform number chooses in the
order of the vocabulary. text_generation/sampling/random_sampling.py does the same by torch.

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
    size_bits,
    store,
    take,
    take_wide_vectors,
)

_BLOCK = 64
# Top-p first looks at tokens that no more than so many blocks have, then at less likely ones.
_FIRST_BLOCKS, _FURTHER = 64, np.float32(2)
_ZERO, _LOWEST, _NAN = np.float32(0), np.float32(-np.inf), np.float32(np.nan)
_INFINITY = np.int32(0x7F800000)  # size_bits of it
_LEAST = np.float32(-87)  # e to less is no normal float32
_SUMS = {"reassoc", "contract", "nsz"}


@njit(error_model="numpy")
def _draw(a, at):
    """2 drawn rows, 3 size, 4 x (rows, size), 5 which rows (drawn,) int64, 6 numbers (4, drawn)
    float32: temperature, uniform number, top_p or 0, min_p or 0; 7 top_k (drawn,) int64 or 0, 8 out
    (drawn,) int64, 9 scratch (threads, 4 size + 1) float32: a token each, or the place of the
    largest where that is not finite, of NaN where there is one.
    """
    drawn, size, x = a[2], a[3], at(a[4])
    which, numbers, ks = integers_at(a[5]), float32_at(a[6]), integers_at(a[7])
    tokens, mine = integers_at(a[8]), a[9] + 4 * take(a, 1) * (4 * size + 1)
    scores, places = float32_at(mine), float32_at(mine + 4 * size)
    work, maxima = float32_at(mine + 8 * size), float32_at(mine + 12 * size)
    while True:
        row = take(a, 0)
        if row >= drawn:
            break
        temperature, uniform = load(numbers, row), load(numbers, drawn + row)
        top_p, min_p = load(numbers, 2 * drawn + row), load(numbers, 3 * drawn + row)
        first, k = which[row] * size, ks[row]
        largest = _block_maxima(x, first, size, maxima)
        if largest - largest != _ZERO:
            tokens[row] = _place_of(x, first, size, largest)
            continue
        sums = 0.0
        if k == 0:
            cut = min_p if top_p == _ZERO else _ZERO
            sums = _block_weights(x, first, size, largest, temperature, cut, work)
            if top_p == _ZERO:
                tokens[row] = _invert_blocks(
                    x, first, size, largest, temperature, min_p, work, uniform
                )
                continue
        bound = _bound(maxima, size, largest, temperature, k if k > 0 else _FIRST_BLOCKS, work)
        count = _likeliest(x, first, size, largest, temperature, bound, maxima, scores, places)
        mass = top_p * np.float32(sums)
        while k == 0 and bound > _LEAST and _mass(scores, count) < mass:
            bound -= _FURTHER
            count = _likeliest(x, first, size, largest, temperature, bound, maxima, scores, places)
        for i in range(count):
            store(work, i, load(scores, i))
        least = _LOWEST
        if k > 0:
            least = _kth_largest(work, count, k)
            mass = top_p * np.float32(_mass(work, k))
        if top_p > _ZERO:
            kept = _top_p(work, count, np.float64(mass))
            least = kept if kept > least else least
        tokens[row] = _invert(scores, places, count, least, min_p, uniform, work)


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
def _place_of(x, first, size, value):
    """Where a value is first, or NaN."""
    for i in range(size):
        found = load(x, first + i)
        if found == value or found != found:
            return i
    return 0


@njit(error_model="numpy")
def _bound(maxima, size, largest, temperature, count, work):
    """A score that at least so many tokens have or exceed."""
    num_blocks = (size + _BLOCK - 1) // _BLOCK
    if count >= num_blocks:
        return _LOWEST
    for block in range(num_blocks):
        store(work, block, load(maxima, block))
    return (_kth_largest(work, num_blocks, count) - largest) / temperature


@njit(error_model="numpy")
def _likeliest(x, first, size, largest, temperature, bound, maxima, scores, places):
    """The scores from ``bound`` on, in the order of the vocabulary; returns how many."""
    count = 0
    for block in range((size + _BLOCK - 1) // _BLOCK):
        if (load(maxima, block) - largest) / temperature < bound:
            continue
        for i in range(block * _BLOCK, min(size, (block + 1) * _BLOCK)):
            score = (load(x, first + i) - largest) / temperature
            store(scores, count, score)
            store(places, count, np.float32(i))
            count += 1 if score >= bound else 0
    return count


@njit(error_model="numpy")
def _kth_largest(values, count, k):
    """Reorders the values: the ``k`` largest come first. Hoare's quickselect."""
    low, high = 0, count - 1
    while low < high:
        pivot, i, j = load(values, (low + high) // 2), low, high
        while i <= j:
            while load(values, i) > pivot:
                i += 1
            while load(values, j) < pivot:
                j -= 1
            if i <= j:
                _swap(values, i, j)
                i, j = i + 1, j - 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return load(values, k - 1)


@njit(error_model="numpy", inline="always")
def _swap(values, i, j):
    value = load(values, i)
    store(values, i, load(values, j))
    store(values, j, value)


@njit(fastmath=_SUMS, error_model="numpy")
def _mass(scores, count):
    total = 0.0
    for i in range(count):
        total += _weight(load(scores, i))
    return total


@njit(error_model="numpy")
def _top_p(scores, count, mass):
    """The least score that is kept: a token is, while the weights before it are below ``mass``.

    A quickselect that goes by weights; what is equal is kept together.
    """
    low, high, above = 0, count, 0.0
    while True:
        pivot, more = load(scores, (low + high) // 2), 0.0
        greater, i, less = low, low, high
        while i < less:
            score = load(scores, i)
            if score > pivot:
                _swap(scores, i, greater)
                more += _weight(score)
                greater, i = greater + 1, i + 1
            elif score < pivot:
                less -= 1
                _swap(scores, i, less)
            else:
                i += 1
        if greater > low and above + more >= mass:
            high = greater
            continue
        above += more + (less - greater) * np.float64(_weight(pivot))
        if above >= mass or less == high:
            return pivot
        low = less


@njit(error_model="numpy")
def _invert(scores, places, count, least, min_p, uniform, weights):
    """The place of the first token whose cumulative weight exceeds ``uniform`` of the total."""
    total = 0.0
    for i in range(count):
        score = load(scores, i)
        weight = _weight(score) if score >= least else _ZERO
        weight = weight if weight >= min_p else _ZERO
        store(weights, i, weight)
        total += weight
    limit, cumulative, last = _limit(total, uniform), 0.0, 0
    for i in range(count):
        weight = load(weights, i)
        if weight > _ZERO:
            cumulative, last = cumulative + weight, i
            if np.float32(cumulative) > limit:
                break
    return np.int64(load(places, last))


@njit(error_model="numpy", inline="always")
def _limit(total, uniform):
    """Below the total, so that a token exceeds it."""
    whole = np.float32(total)
    limit, below = uniform * whole, of_bits(size_bits(whole) - np.int32(1))
    return limit if limit < below else below


@njit(fastmath=_SUMS, error_model="numpy")
def _block_weight(x, begin, end, largest, temperature, min_p):
    take_wide_vectors()
    total = _ZERO
    for i in range(begin, end):
        weight = _weight((load(x, i) - largest) / temperature)
        total += weight if weight >= min_p else _ZERO
    return total


@njit(error_model="numpy")
def _block_weights(x, first, size, largest, temperature, min_p, sums):
    """The weight of each block; returns that of all."""
    total = 0.0
    for begin in range(0, size, _BLOCK):
        end = min(size, begin + _BLOCK)
        weight = _block_weight(x, first + begin, first + end, largest, temperature, min_p)
        store(sums, begin // _BLOCK, weight)
        total += weight
    return total


@njit(error_model="numpy")
def _invert_blocks(x, first, size, largest, temperature, min_p, sums, uniform):
    """As _invert, of all tokens: finds the block, then the token within."""
    num_blocks = (size + _BLOCK - 1) // _BLOCK
    total = 0.0
    for block in range(num_blocks):
        total += load(sums, block)
    limit, cumulative, block = _limit(total, uniform), 0.0, 0
    while np.float32(cumulative + load(sums, block)) <= limit and block < num_blocks - 1:
        cumulative, block = cumulative + load(sums, block), block + 1
    last = -1
    for i in range(block * _BLOCK, min(size, (block + 1) * _BLOCK)):
        weight = _weight((load(x, first + i) - largest) / temperature)
        if weight > _ZERO and weight >= min_p:
            cumulative, last = cumulative + weight, i
            if np.float32(cumulative) > limit:
                break
    return last if last >= 0 else _place_of(x, first, size, largest)

"""Attention of whole texts in bfloat16, for processors that multiply it in tiles (AMX).

Arguments are as in kernels.py. Scores and their softmax are float32, weights bfloat16, sums of
weighted values float32.

A thread may use tiles once its process has asked for them (tiles.py), and sets them up and lets go
of them itself: torch's products set up their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from .kernels import LOG2_E, bfloat16_at, float32_at, float_of, integers_at, load, store, take
from .text_kernels import seen, transpose_at
from .tile_operations import (
    DEEP,
    FLOATS,
    ROWS,
    TILE,
    clear,
    copy,
    find_offsets,
    find_parts,
    interleave,
    let_go,
    mask,
    multiply,
    set_up,
    store_row,
    weigh,
)

_ZERO = np.float32(0)


@njit(fastmath=True, error_model="numpy")
def _copy_rows(x: Any, at: Any, width: Any, rows: Any, dim: Any, out: Any) -> None:
    """A tile for each DEEP of ``dim`` numbers of up to 16 rows; zeros beyond them."""
    for i in range(0, dim, DEEP):
        count = min(DEEP, dim - i)
        for r in range(ROWS):
            to = out + i // DEEP * TILE + r * 64
            if r < rows and count == DEEP:
                copy(x, at + r * width + i, float32_at(to))
                continue
            for c in range(ROWS):
                store(float32_at(to), c, _ZERO)
            for c in range(count if r < rows else 0):
                store(bfloat16_at(to), c, load(x, at + r * width + i + c))


@njit(fastmath=True, error_model="numpy")
def _keep_keys(
    x: Any, at: Any, width: Any, count: Any, dim: Any, deep: Any, keys: Any, rows: Any
) -> None:
    """Keys as factors of products: a tile's row has two numbers of each of 16 keys."""
    for j in range(0, count + (-count) % DEEP, ROWS):
        _copy_rows(x, at + j * width, width, count - j, dim, rows)
        for i in range(deep):
            to = keys + ((j // DEEP * deep + i) * 2 + j // ROWS % 2) * TILE
            transpose_at(float32_at(rows + i * TILE), 0, ROWS, float32_at(to), ROWS)


@njit(fastmath=True, error_model="numpy")
def _keep_values(x: Any, at: Any, width: Any, count: Any, dim: Any, deep: Any, values: Any) -> None:
    """Values as factors of products: a tile's row has 16 numbers of two tokens in turns."""
    for j in range(0, count + (-count) % DEEP, 2):
        for i in range(0, deep * DEEP, ROWS):
            tile = (j // DEEP * deep + i // DEEP) * 2 + i // ROWS % 2
            to = values + tile * TILE + j % DEEP // 2 * 64
            first = at + j * width + i
            if i + ROWS <= dim and j + 1 < count:
                interleave(x, first, first + width, float32_at(to))
                continue
            for c in range(ROWS):
                store(float32_at(to), c, _ZERO)
            for r in range(min(2, count - j)):
                for c in range(min(ROWS, dim - i)):
                    store(bfloat16_at(to), 2 * c + r, load(x, first + r * width + c))


@njit(fastmath=True, error_model="numpy")
def _attend_tiles(a: Any) -> None:
    """As attend_texts in text_kernels.py, but for 11 the most tokens of a text in whole DEEP, 12
    dim in whole DEEP, 18 and 19 (heads, columns, dim) in tiles as keys are, with the columns of
    distances from -a[20] to a[20] + 1, a[20] + 1 in whole DEEP.
    """
    set_up()
    qkv = bfloat16_at(a[6])
    heads, kv_heads, dim, starts = a[3], a[4], a[5], integers_at(a[8])
    groups, width, deep = heads // kv_heads, (heads + 2 * kv_heads) * dim, a[12] // DEEP
    # of this thread's, in whole tiles
    keys = (a[9] + 4 * take(a, 1) * a[10] + 63) // 64 * 64
    values = keys + 2 * a[11] * a[12]
    rest = values + 2 * a[11] * a[12]
    tasks = a[2] * kv_heads
    while True:
        task = take(a, 0)
        if task >= tasks:
            break
        task = tasks - 1 - task  # the longest texts, which are the last, first
        first, kv_head = starts[task // kv_heads], task % kv_heads
        count = starts[task // kv_heads + 1] - first
        key = first * width + (heads + kv_head) * dim
        _keep_keys(qkv, key, width, count, dim, deep, keys, rest)
        _keep_values(qkv, key + kv_heads * dim, width, count, dim, deep, values)
        for head in range(kv_head * groups, (kv_head + 1) * groups):
            if a[19] != 0:
                _keep_by_keys(a, key, width, count, head, rest)
            for begin in range(0, count, ROWS):
                _attend_rows(a, first, begin, count, head, keys, values, rest)
    let_go()


@njit(fastmath=True, error_model="numpy")
def _relative_scratch(a: Any, scratch: Any) -> Any:
    """Behind a thread's queries, scores and weights: products with columns of distances, ROWS rows
    of a[11] + 2 * DEEP numbers; and what keys add to scores, a[11] rows of as many, from the second
    address on.
    """
    products = scratch + 3 * a[12] // DEEP * TILE + 96 * a[11] + TILE // 2
    return products, products + 4 * ROWS * (a[11] + 2 * DEEP)


@njit(fastmath=True, error_model="numpy")
def _by_distance(a: Any, table: Any, head: Any, token: Any, count: Any, scratch: Any) -> Any:
    """Products of the ROWS vectors at ``scratch`` with the columns of ``table`` for t - (token +
    r), of the tokens t below ``count``; where that of the first vector and token is. Each row lies
    one further to the left than the one before.
    """
    deep, row = a[12] // DEEP, a[11] + 2 * DEEP
    products, _ = _relative_scratch(a, scratch)
    made = scratch + deep * TILE
    first = a[20] - token - (ROWS - 1)
    before = first % DEEP
    columns = table + (head * (2 * a[20] + 2) + first - before) * deep * 64
    for t in range(0, before + count + ROWS - 1, DEEP):
        multiply(scratch, TILE, columns + t * deep * 64, 2 * TILE, deep, made)
        for r in range(ROWS):
            for half in range(2):
                to = products + 4 * (r * row + t + half * ROWS)
                copy(float32_at(made + half * TILE), r * ROWS, float32_at(to))
    return products + 4 * (before + ROWS - 1)


@njit(fastmath=True, error_model="numpy")
def _keep_by_keys(a: Any, key: Any, width: Any, count: Any, head: Any, scratch: Any) -> None:
    """What a text's keys, from ``qkv[key]`` on, add to the scores of its queries."""
    row = a[11] + 2 * DEEP - 1
    _, added = _relative_scratch(a, scratch)
    for j in range(0, count, ROWS):
        _copy_rows(bfloat16_at(a[6]), key + j * width, width, count - j, a[5], scratch)
        products = _by_distance(a, a[19], head, j, count, scratch)
        for i in range(0, count, ROWS):
            to = float32_at(added + 4 * (i * a[11] + j))
            transpose_at(float32_at(products), i, row, to, a[11])


@njit(fastmath=True, error_model="numpy")
def _add(row: Any, pairs: Any, x: Any) -> None:
    for tile in range(2 * pairs):
        for c in range(ROWS):
            at = tile * FLOATS + c
            store(row, at, load(row, at) + load(x, tile * ROWS + c))


@njit(fastmath=True, error_model="numpy")
def _attend_rows(
    a: Any,
    first: Any,
    begin: Any,
    count: Any,
    head: Any,
    keys: Any,
    values: Any,
    queries: Any,
) -> None:
    """Up to ROWS queries of a head from a text's token ``begin`` on."""
    out, heads, dim, deep = bfloat16_at(a[7]), a[3], a[5], a[12] // DEEP
    width, scale = (heads + 2 * a[4]) * dim, float_of(a[15]) * LOG2_E
    rows = min(ROWS, count - begin)
    low, high = seen(a, begin, begin + rows - 1, count)
    low = low // DEEP * DEEP
    made, scores = queries + deep * TILE, queries + 3 * deep * TILE
    # Half a tile off, for a processor waits with what it reads a multiple of 4096 bytes away from
    # what it is about to write.
    weights = scores + a[11] * 64 + TILE // 2
    query = (first + begin) * width + head * dim
    _copy_rows(bfloat16_at(a[6]), query, width, rows, dim, queries)
    pairs = (high - low + DEEP - 1) // DEEP
    step = 2 * deep * TILE  # from one pair's keys or values to the next's
    keys, values = keys + low // DEEP * step, values + low // DEEP * step
    for pair in range(pairs):
        multiply(queries, TILE, keys + pair * step, 2 * TILE, deep, scores + pair * 2 * TILE)
    products, added = _relative_scratch(a, queries)
    if a[18] != 0:
        products = _by_distance(a, a[18], head, begin - low, high - low, queries)
    offsets, sums = float32_at(queries), float32_at(made)
    for r in range(rows):
        row, token = float32_at(scores + 64 * r), begin + r
        least, most = seen(a, token, token, count)
        least, most = least - low, most - low
        if a[18] != 0:
            _add(row, pairs, float32_at(products + 4 * r * (a[11] + 2 * DEEP - 1)))
        if a[19] != 0:
            _add(row, pairs, float32_at(added + 4 * (token * a[11] + low)))
        if a[16] != 0:
            _add_bias(a, row, head, low - token, min(most, 2 * ROWS * pairs))
        for tile in range((least + ROWS - 1) // ROWS):
            mask(row, tile, least, most)
        for tile in range(most // ROWS, 2 * pairs):
            mask(row, tile, least, most)
    scale = LOG2_E if a[16] != 0 else scale
    find_offsets(float32_at(scores), pairs, scale, offsets)
    clear(sums)
    for pair in range(pairs):
        tiles, to = float32_at(scores + pair * 2 * TILE), float32_at(weights + pair * TILE)
        weigh(tiles, scale, offsets, to, sums)
    find_parts(sums, offsets)
    for i in range(deep):
        multiply(weights, TILE, values + i * 2 * TILE, step, pairs, made + i * 2 * TILE)
    for r in range(rows):
        at, part = ((first + begin + r) * heads + head) * dim, load(offsets, r)
        for i in range(0, dim, ROWS):
            row = float32_at(made + i // ROWS * TILE + 64 * r)
            if i + ROWS <= dim:
                store_row(row, part, out, at + i)
            else:
                for c in range(dim - i):
                    store(out, at + i + c, load(row, c) * part)


@njit(fastmath=True, error_model="numpy")
def _add_bias(a: Any, row: Any, head: Any, distance: Any, most: Any) -> None:
    """Scores of a row times the scale, plus the bias of the keys from ``distance`` on."""
    bias, scale = float32_at(a[16]), float_of(a[15])
    at = head * (2 * a[17] - 1) + distance + a[17] - 1
    for j in range(0, most, ROWS):
        to = j // ROWS * FLOATS
        for c in range(min(ROWS, most - j)):
            store(row, to + c, load(row, to + c) * scale + load(bias, at + j + c))


def _attend_tiles_bfloat16(a: Any) -> None:
    _attend_tiles(a)


ENTRIES: dict[tuple[str, str], Callable[[Any], None]] = {
    ("attend_tiles", "bfloat16"): _attend_tiles_bfloat16,
}

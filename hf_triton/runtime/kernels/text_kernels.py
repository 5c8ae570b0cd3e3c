"""Attention of whole texts that lie one after the other, each over itself, as blocks of products.

Arguments are as in kernels.py. All is computed in float32. A thread copies the keys of a head,
transposed, and its values to memory of its own, and then computes the scores of a few queries at a
time: rows of both products are multiplied in registers.
"""

from __future__ import annotations

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .kernels import FAST, float32_at, float_of, integers_at, load, own, softmax, store, tasks

_LANES = 16  # numbers that are computed at once; a processor without AVX-512 takes them in parts
_IS_WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
ROWS = 8 if _IS_WIDE else 4  # of a product's tile, as many as a processor keeps in registers
_VECTORS = 2 if _IS_WIDE else 1
COLUMNS = _VECTORS * _LANES
_ONE, _LOWEST = np.float32(1), np.float32(-np.inf)
_VECTOR = ir.VectorType(ir.FloatType(), _LANES)
_I64 = ir.IntType(64)


def _vector_at(builder, pointer, index):
    return builder.bitcast(builder.gep(pointer, [index]), _VECTOR.as_pointer())


@intrinsic
def _tile(typing_context, a, a_row, b, b_row, depth, out, out_row):
    """out[r, c] = sum over k < depth of a[r, k] * b[k, c], for r < ROWS and c < COLUMNS; rows lie
    as many numbers apart as said.
    """
    floats, number = types.CPointer(types.float32), types.int64
    signature = types.void(floats, number, floats, number, number, floats, number)

    def generate(context, builder, signature, args):
        a, a_row, b, b_row, depth, out, out_row = args
        firsts = [builder.gep(a, [builder.mul(a_row, _I64(row))]) for row in range(ROWS)]
        before = builder.block
        loop, after = builder.append_basic_block("tile"), builder.append_basic_block("tiled")
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_I64)
        k.add_incoming(_I64(0), before)
        sums = [builder.phi(_VECTOR) for _ in range(ROWS * _VECTORS)]
        b_first = builder.mul(k, b_row)
        columns = [
            builder.load(_vector_at(builder, b, builder.add(b_first, _I64(v * _LANES))), align=4)
            for v in range(_VECTORS)
        ]
        made = []
        for row, first in enumerate(firsts):
            value = builder.load(builder.gep(first, [k]))
            empty = ir.Constant(_VECTOR, ir.Undefined)
            lane = builder.insert_element(empty, value, ir.IntType(32)(0))
            first_lane = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), None)
            value = builder.shuffle_vector(lane, empty, first_lane)
            for v, column in enumerate(columns):
                product = builder.fmul(value, column, flags=["contract"])
                made.append(builder.fadd(product, sums[row * _VECTORS + v], flags=["contract"]))
        following = builder.add(k, _I64(1))
        k.add_incoming(following, loop)
        for sum_, new in zip(sums, made, strict=True):
            sum_.add_incoming(ir.Constant(_VECTOR, None), before)
            sum_.add_incoming(new, loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
        builder.position_at_end(after)
        for number, new in enumerate(made):
            row, v = divmod(number, _VECTORS)
            place = builder.add(builder.mul(out_row, _I64(row)), _I64(v * _LANES))
            builder.store(new, _vector_at(builder, out, place), align=4)
        return context.get_dummy_value()

    return signature, generate


@njit(fastmath=FAST, error_model="numpy")
def _keep_head(qkv, key, value, width, count, dim, keys, values, a):
    """keys[i, j] and values[j, i] of a text's ``count`` tokens from ``qkv[key]`` and ``qkv[value]``
    on, rows of a[11] and a[12] numbers.
    """
    stride, wide, by_number, by_token = a[11], a[12], float32_at(keys), float32_at(values)
    for first in range(0, count, _LANES):  # few enough to stay in the nearest cache
        for i in range(dim):
            for j in range(first, min(first + _LANES, count)):
                store(by_number, i * stride + j, load(qkv, key + j * width + i))
    for j in range(count):
        for i in range(dim):
            store(by_token, j * wide + i, load(qkv, value + j * width + i))


@njit(fastmath=FAST, error_model="numpy")
def _attend_texts(a, at):
    """Each text's queries over its own keys.

    2 texts, 3 heads, 4 kv_heads, 5 dim, 6 qkv (tokens, (heads + 2 kv_heads) * dim), 7 out (tokens,
    heads * dim), 8 starts (texts + 1,) int64, 9 scratch (threads, a[10]) float32, 11 the most
    tokens of a text and COLUMNS beyond them, 12 dim in whole COLUMNS, 13 window or 0, 14 whether it
    is causal, 15 scale, 16 bias (heads, 2 * a[17] - 1) float32 or 0: of a key's distance from its
    query, from 1 - a[17] on. 18 relative keys and 19 relative queries or 0, (heads, dim, 2 *
    a[20] + 1) float32: of distances from -a[20] on, COLUMNS more than a text has on both sides.
    """
    heads, kv_heads, dim, starts = a[3], a[4], a[5], integers_at(a[8])
    qkv, out = at(a[6]), at(a[7])
    stride, wide = a[11], a[12]
    groups, width = heads // kv_heads, (heads + 2 * kv_heads) * dim
    keys = own(a, a[9], 4 * a[10])
    values = keys + 4 * dim * stride
    queries = values + 4 * stride * wide
    num_tasks = a[2] * kv_heads
    for number in tasks(a, num_tasks):
        task = num_tasks - 1 - number  # the longest texts, which are the last, first
        first, kv_head = starts[task // kv_heads], task % kv_heads
        count = starts[task // kv_heads + 1] - first
        key = first * width + (heads + kv_head) * dim
        _keep_head(qkv, key, key + kv_heads * dim, width, count, dim, keys, values, a)
        for head in range(kv_head * groups, (kv_head + 1) * groups):
            if a[19] != 0:
                _keep_by_keys(a, qkv, key, width, count, head, queries)
            for begin in range(0, count, ROWS):
                _attend_rows(a, qkv, out, first, begin, count, head, keys, values, queries)


@njit(fastmath=FAST, error_model="numpy")
def _relative_scratch(a, scratch):
    """Behind a thread's queries and scores: products with columns of distances, 17 rows of a[11] +
    ROWS numbers; and what keys add to scores, a[11] rows of as many, from the second address on.
    """
    products = scratch + 4 * ROWS * (a[5] + a[12] + a[11])
    return products, products + 4 * 17 * (a[11] + ROWS)


@njit(fastmath=FAST, error_model="numpy")
def _by_distance(a, table, head, x, token, count, products):
    """products[r, ROWS - 1 + t] = x[r] times the column of ``table`` for t - (token + r), of the
    tokens t below ``count``; each row lies one further to the left than the one before.
    """
    dim, columns, row = a[5], 2 * a[20] + 1, a[11] + ROWS
    first = table + 4 * (head * dim * columns + a[20] - token - (ROWS - 1))
    for t in range(0, count + ROWS - 1, COLUMNS):
        to = float32_at(products + 4 * t)
        _tile(x, dim, float32_at(first + 4 * t), columns, dim, to, row + 1)


@njit(fastmath=FAST, error_model="numpy")
def _keep_by_keys(a, qkv, key, width, count, head, scratch):
    """Stores what a text's keys, from ``qkv[key]`` on, add to the scores of its queries."""
    dim, stride, row, scale = a[5], a[11], a[11] + ROWS, float_of(a[15])
    keys = float32_at(scratch)
    products, added = _relative_scratch(a, scratch)
    of_tokens, by_query = float32_at(products), float32_at(added)
    for j in range(0, count, _LANES):
        for token in range(j, min(j + _LANES, count), ROWS):
            for r in range(min(ROWS, count - token)):
                for i in range(dim):
                    store(keys, r * dim + i, load(qkv, key + (token + r) * width + i) * scale)
            _by_distance(a, a[19], head, keys, token, count, products + 4 * (token - j) * row)
        for i in range(count):
            for r in range(min(_LANES, count - j)):
                store(by_query, i * stride + j + r, load(of_tokens, r * row + ROWS - 1 + i))


@njit(fastmath=FAST, error_model="numpy")
def _add(row, count, x):
    for j in range(count):
        store(row, j, load(row, j) + load(x, j))


@njit(fastmath=FAST, error_model="numpy")
def _seen(a, first, last, count):
    """The first key that one of the queries ``first`` to ``last`` of a text looks at, and the one
    behind the last.
    """
    window = a[13]
    low = max(0, first - window + 1) if window else 0
    if a[14] != 0:
        return low, last + 1
    return low, min(count, last + window) if window else count


@njit(fastmath=FAST, error_model="numpy")
def _attend_rows(a, qkv, out, first, begin, count, head, keys, values, scratch):
    """Up to ROWS queries of a head from a text's token ``begin`` on."""
    heads, dim, stride, wide = a[3], a[5], a[11], a[12]
    width, scale = (heads + 2 * a[4]) * dim, float_of(a[15])
    rows = min(ROWS, count - begin)
    low, high = _seen(a, begin, begin + rows - 1, count)
    queries, made = float32_at(scratch), float32_at(scratch + 4 * ROWS * dim)
    scores = scratch + 4 * ROWS * (dim + wide)
    for r in range(rows):
        at = (first + begin + r) * width + head * dim
        for i in range(dim):
            store(queries, r * dim + i, load(qkv, at + i) * scale)
    reach = high - low
    padded = reach + (-reach) % COLUMNS
    for j in range(0, padded, COLUMNS):
        to = float32_at(scores + 4 * j)
        _tile(queries, dim, float32_at(keys + 4 * (low + j)), stride, dim, to, stride)
    products, added = _relative_scratch(a, scratch)
    if a[18] != 0:
        _by_distance(a, a[18], head, queries, begin - low, reach, products)
    for r in range(rows):
        row = float32_at(scores + 4 * r * stride)
        token = begin + r
        least, most = _seen(a, token, token, count)
        if a[16] != 0:
            at = head * (2 * a[17] - 1) + low - token + a[17] - 1
            _add(row, reach, float32_at(a[16] + 4 * at))
        if a[18] != 0:
            _add(row, reach, float32_at(products + 4 * (r * (stride + ROWS) + ROWS - 1)))
        if a[19] != 0:
            _add(row, reach, float32_at(added + 4 * (token * stride + low)))
        for j in range(least - low):
            store(row, j, _LOWEST)
        for j in range(most - low, padded):
            store(row, j, _LOWEST)
        store(queries, r, softmax(row, padded))
    for i in range(0, wide, COLUMNS):
        _tile(
            float32_at(scores),
            stride,
            float32_at(values + 4 * (low * wide + i)),
            wide,
            reach,
            float32_at(scratch + 4 * (ROWS * dim + i)),
            wide,
        )
    for r in range(rows):
        at, part = ((first + begin + r) * heads + head) * dim, _ONE / load(queries, r)
        for i in range(dim):
            store(out, at + i, load(made, r * wide + i) * part)

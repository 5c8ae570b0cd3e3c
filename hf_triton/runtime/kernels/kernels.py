"""A decoder's operators between its matrix products, and those of int8 layers before and after
theirs, as loops over tokens.

Each is compiled for memory in float32 or in bfloat16, and computes in float32; bfloat16 is rounded
where torch's operators would round. A kernel takes its arguments as integers (compiled_loops.py):
sizes, addresses, and ``bits_of`` floats, as listed with each from argument 2 on; behind them are
counters, from which its threads take their next task. Every task writes rows of its own. ``at``
makes pointers to numbers of the dtype at hand.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from . import layout as of
from .layout import COUNTERS

# LLVM's flags that allow another order, but no promise that all numbers are finite, as
# ``fastmath=True`` gives: a row with a NaN has to show it in its own outputs.
FAST = {"reassoc", "contract", "arcp", "afn", "nsz"}
_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2, _P3, _P4, _P5 = (
    *(np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)),
    *(np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)),
)
_ZERO, _ONE = np.float32(0), np.float32(1)
_TO_INTEGER = np.float32(3 * 2**22)  # adding it rounds to the nearest integer
_TO_INTEGER_BITS = 0x4B400000
_LEAST_POWER, _MOST_POWER = -87.0, 88.0  # beyond them e to x is no normal float32
_ROUND_TO_EVEN = 0x7FFF
_NO_SIGN = 0x7FFFFFFF


_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()


def built(signature, build):
    """An intrinsic's return value: it computes what ``build(builder, *values)`` makes, if any."""

    def generate(context, builder, signature, args):
        made = build(builder, *args)
        return context.get_dummy_value() if signature.return_type == types.void else made

    return signature, generate


def _at(element, kind):
    @intrinsic
    def pointer(typing_context, address):
        signature = types.CPointer(element)(types.int64)
        return built(signature, lambda builder, at: builder.inttoptr(at, kind.as_pointer()))

    return pointer


integers_at = _at(types.int64, _I64)
_int32_at = _at(types.int32, _I32)
float32_at = _at(types.float32, _FLOAT)
bfloat16_at = _at(types.uint16, ir.IntType(16))  # its bits
bytes_at = _at(types.uint8, ir.IntType(8))


def _widened(builder, bits):
    """bfloat16's bits as a float32."""
    return builder.bitcast(builder.shl(builder.zext(bits, _I32), _I32(16)), _FLOAT)


def _rounded(builder, value):
    """The upper half of a float32, rounded; as torch does, but for NaN, which stays one."""
    bits = builder.bitcast(value, _I32)
    last = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
    bits = builder.add(builder.add(bits, _I32(_ROUND_TO_EVEN)), last)
    return builder.trunc(builder.lshr(bits, _I32(16)), ir.IntType(16))


@intrinsic
def load(typing_context, pointer, index):
    """``pointer[index]`` as float32."""

    def build(builder, at, index):
        value = builder.load(builder.gep(at, [index]))
        return _widened(builder, value) if pointer.dtype == types.uint16 else value

    return built(types.float32(pointer, types.int64), build)


@intrinsic
def store(typing_context, pointer, index, value):
    """``pointer[index] = value``; bfloat16 is rounded to the nearest, ties to even."""

    def build(builder, at, index, value):
        value = _rounded(builder, value) if pointer.dtype == types.uint16 else value
        builder.store(value, builder.gep(at, [index]))

    return built(types.void(pointer, types.int64, types.float32), build)


@intrinsic
def rounded(typing_context, pointer, value):
    """``value`` as it reads after being stored at ``pointer``."""

    def build(builder, at, value):
        is_half = pointer.dtype == types.uint16
        return _widened(builder, _rounded(builder, value)) if is_half else value

    return built(types.float32(pointer, types.float32), build)


@njit
def size_bits(value):
    """``abs(value)`` as an int32 of the same order, the largest of which LLVM finds 16 at a time.
    NaN is above all.
    """
    return np.int32(np.float32(value).view(np.int32) & _NO_SIGN)


@njit
def of_bits(bits):
    """The float32 that has these bits."""
    return np.int32(bits).view(np.float32)


@intrinsic
def take_wide_vectors(typing_context):
    """Makes LLVM compute a function's loops in vectors of 512 bits, where the processor has those:
    left to itself it takes 256, for early ones that had to run slower. In each function itself.
    """

    def build(builder):
        # a set of names that it knows, which this is not one of
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')

    return built(types.void(), build)


@intrinsic
def _take(typing_context, arguments, index):
    """The next number of a kernel's counter 0 or 1, each once among all threads."""

    def build(builder, arguments, index):
        counter = builder.gep(arguments, [builder.add(index, _I64(COUNTERS))])
        return builder.atomic_rmw("add", counter, _I64(1), "monotonic")

    return built(types.int64(arguments, types.int64), build)


@njit(error_model="numpy")
def tasks(a, count):
    """The numbers below ``count``, each of which one thread takes."""
    task = _take(a, 0)
    while task < count:
        yield task
        task = _take(a, 0)


@njit(error_model="numpy")
def own(a, address, num_bytes):
    """The thread's own part, of so many bytes, of the memory at an address; asked for once."""
    return address + num_bytes * _take(a, 1)


@njit
def float_of(bits):
    """The float32 nearest to the float64 that has these bits."""
    return np.float32(np.int64(bits).view(np.float64))


@intrinsic
def larger(typing_context, a, b):
    """The larger of two numbers, or any number where one is NaN; LLVM finds that of many 16 at a
    time, which it does not with Python's ``max``.
    """

    def build(builder, *both):
        flags = ["nnan", "nsz"]
        return builder.select(builder.fcmp_ordered(">", *both, flags=flags), *both, flags=flags)

    return built(types.float32(types.float32, types.float32), build)


@intrinsic
def _clamped(typing_context, x):
    """``x`` between _LEAST_POWER and _MOST_POWER, without a branch."""

    def build(builder, value):
        for sign, bound in (("<", _LEAST_POWER), (">", _MOST_POWER)):
            value = builder.select(
                builder.fcmp_ordered(sign, value, _FLOAT(bound)), _FLOAT(bound), value
            )
        return value

    return built(types.float32(types.float32), build)


# Not reassociated: the two parts of ln 2 are subtracted one after the other.
@njit(fastmath={"contract", "nsz"})
def exp(x):
    """e to ``x`` in float32, in operations that LLVM can do for 16 numbers at once.

    Within 2 units of the last place; Cephes' expf, https://www.netlib.org/cephes/.
    """
    x = _clamped(x)
    shifted = x * _LOG2_E + _TO_INTEGER
    n = shifted - _TO_INTEGER
    x = x - n * _LN2_HIGH
    x = x - n * _LN2_LOW
    y = _P0
    y = y * x + _P1
    y = y * x + _P2
    y = y * x + _P3
    y = y * x + _P4
    y = y * x + _P5
    y = y * (x * x) + x + _ONE
    biased = np.float32(shifted).view(np.int32) + (127 - _TO_INTEGER_BITS)
    return y * of_bits(biased << 23)  # 2 to the integer in the low bits


_ROW_BLOCK = 4
_NORMED_TOGETHER = 4  # rows that a thread takes at a time
_TWO = np.float32(2)
# 2 sqrt(2 / pi), and that times 0.044715
_GELU_LINEAR, _GELU_CUBIC = np.float32(1.5957691216), np.float32(0.0713548163)
# The ranges of devices/prepacked_linear.py. Adding 0.5 makes the cast to int32, which truncates,
# round to the nearest.
_ONE_DIGIT, _ONE_DIGIT_FROM = np.float32(127), np.float32(128.5)
_TWO_DIGITS, _TWO_DIGITS_FROM = np.float32(32767), np.float32(32768.5)
_BASE = np.float32(256)
_SMALLEST_MAXIMUM = np.int32(np.float32(2.0**-110).view(np.int32))


@njit(fastmath=FAST, error_model="numpy", inline="always")
def _normalised(x, at, size, weight, bias, eps, has_mean, is_wide, out, to):
    """RMSNorm of ``x[at : at+size]``, https://arxiv.org/abs/1910.07467; LayerNorm where it
    ``has_mean``. Addresses of the weight, and of the bias or 0, float32.
    """
    weights, biases, mean, total = float32_at(weight), float32_at(bias), _ZERO, _ZERO
    if has_mean != 0:
        for i in range(size):
            mean += load(x, at + i)
        mean /= np.float32(size)
    for i in range(size):
        value = load(x, at + i) - mean
        total += value * value
    scale = _ONE / np.sqrt(total / np.float32(size) + eps)
    for i in range(size):
        value = (load(x, at + i) - mean) * scale
        value = (value if is_wide != 0 else rounded(out, value)) * load(weights, i)
        store(out, to + i, value + load(biases, i) if bias != 0 else value)


@njit(fastmath=FAST, error_model="numpy")
def _norm(a, at):
    """2 rows, 3 parts of each, 4 size of a part, 5 numbers from one row to the next, 6 x, 7 delta
    as large or 0, 8 weight and 9 bias or 0, (size,) or (parts, size), both float32, 10 out, 11
    numbers from one part's weight to the next, 12 whether the mean is taken off, 13 eps, 14 numbers
    from one part to the next, 15 whether Llama's rounding before the weight is left out: x +=
    delta; out = norm(x) * weight + bias, part by part.
    """
    take_wide_vectors()
    x, delta, out, eps = at(a[6]), at(a[7]), at(a[10]), float_of(a[13])
    num_parts = a[2] * a[3]
    for block in tasks(a, (num_parts + _NORMED_TOGETHER - 1) // _NORMED_TOGETHER):
        first = block * _NORMED_TOGETHER
        for number in range(first, min(first + _NORMED_TOGETHER, num_parts)):
            part = number % a[3]
            begin, skipped = number // a[3] * a[5] + part * a[14], 4 * part * a[11]
            if a[7] != 0:
                for i in range(begin, begin + a[4]):
                    store(x, i, load(x, i) + load(delta, i))
            weight, bias = a[8] + skipped, a[9] + skipped if a[9] != 0 else 0
            _normalised(x, begin, a[4], weight, bias, eps, a[12], a[15], out, begin)


@njit(fastmath=FAST, error_model="numpy", inline="always")
def _gelu_tanh(x):
    """GELU by tanh, https://arxiv.org/abs/1606.08415; half of 1 + tanh(y) is the sigmoid of 2 y."""
    return x / (_ONE + exp(-x * (_GELU_LINEAR + _GELU_CUBIC * x * x)))


@njit(fastmath=FAST, error_model="numpy", inline="always")
def _silu(x):
    return x / (_ONE + exp(-x))


@njit(fastmath=FAST, error_model="numpy")
def _gated(a, at, activate):
    """2 rows, 3 size, 4 x (rows, size) gate and up, 5 out (rows, size / 2): activate(gate) * up."""
    take_wide_vectors()
    rows, size, x, out = a[2], a[3] // 2, at(a[4]), at(a[5])
    for row in tasks(a, rows):
        gate, up, to = 2 * row * size, (2 * row + 1) * size, row * size
        for i in range(size):
            store(out, to + i, rounded(out, activate(load(x, gate + i))) * load(x, up + i))


@njit(fastmath=FAST, error_model="numpy")
def _rotate(x, at, cos, sin, angle, half, in_pairs):
    """Rotary position embedding of the first ``2 * half`` numbers, in place;
    https://arxiv.org/abs/2104.09864, in the order of halves that Llama has, or in GPT-J's of pairs.
    """
    for i in range(half if in_pairs == 0 else 0):
        low, high = load(x, at + i), load(x, at + half + i)
        c, s = load(cos, angle + i), load(sin, angle + i)
        store(x, at + i, rounded(x, low * c) - rounded(x, high * s))
        store(x, at + half + i, rounded(x, high * c) + rounded(x, low * s))
    for i in range(half if in_pairs != 0 else 0):
        low, high = load(x, at + 2 * i), load(x, at + 2 * i + 1)
        c, s = load(cos, angle + i), load(sin, angle + i)
        store(x, at + 2 * i, low * c - high * s)
        store(x, at + 2 * i + 1, high * c + low * s)


@njit(fastmath=FAST, error_model="numpy")
def _turn(a, at, x, here, weight, angle):
    """Normalises a head's numbers, where ``weight`` is not 0, and rotates them, in place."""
    if weight != 0:
        _normalised(x, here, a[of.DIM], weight, 0, float_of(a[of.EPS]), 0, 0, x, here)
    cos, sin = float32_at(a[of.COS]), float32_at(a[of.SIN])
    _rotate(x, here, cos, sin, angle, a[of.ANGLES], a[of.IN_PAIRS])


@njit(fastmath=FAST, error_model="numpy")
def _place_head(a, at, token, head):
    """Places a token's key and value of one head, and turns them and its queries."""
    dim, size = a[of.DIM], a[of.PAGE_ROWS]
    qkv, first = at(a[of.QUERIES]), token * a[of.TOKEN_STEP]
    position = _int32_at(a[of.POSITIONS])[token]
    angle, query = position * a[of.ANGLES], first + head * a[of.HEAD_STEP]
    for _ in range(a[of.HEADS] // a[of.KV_HEADS]):
        _turn(a, at, qkv, query, a[of.Q_NORM], angle)
        query += dim
    key = first + a[of.NEW_KEYS] + head * a[of.KEY_STEP]
    value = first + a[of.NEW_VALUES] + head * a[of.KEY_STEP]
    _turn(a, at, qkv, key, a[of.K_NORM], angle)
    if a[of.KEYS] != 0:
        keys, values = at(a[of.KEYS]), at(a[of.VALUES])
        pages = _int32_at(a[of.SEQUENCES])[token] * a[of.TABLE_PAGES]
        page = _int32_at(a[of.TABLE])[pages + position // size]
        to = (head * a[of.HEAD_ROWS] + page * size + position % size) * dim
        for i in range(dim):
            store(keys, to + i, load(qkv, key + i))
        for i in range(dim):
            store(values, to + i, load(qkv, value + i))


@njit(fastmath=FAST, error_model="numpy")
def _place(a, at):
    """Normalises (where the model does) and rotates queries and keys in place, and writes keys and
    values to the pages of their sequences.

    Arguments, by their names in layout.py: TOKENS, HEADS, KV_HEADS and DIM; HEAD_ROWS of a head in
    the cache, PAGE_ROWS of a page; QUERIES (the address of the first), numbers from one token's to
    the next's (TOKEN_STEP) and from those of one head of keys to the next's (HEAD_STEP); where a
    token's NEW_KEYS and NEW_VALUES begin, and numbers from one head's to the next's (KEY_STEP);
    KEYS and VALUES (kv_heads, rows, dim), or 0 where they stay where they are; SEQUENCES and
    POSITIONS (tokens,) int32; the block TABLE (sequences, TABLE_PAGES) int32; COS and SIN
    (positions, ANGLES) float32, and whether they turn numbers IN_PAIRS; the weights Q_NORM and
    K_NORM or 0, EPS.
    """
    for token in tasks(a, a[of.TOKENS]):
        for head in range(a[of.KV_HEADS]):
            _place_head(a, at, token, head)


@njit(fastmath=FAST, error_model="numpy")
def _attend(a, at):
    """Each token's queries over its own sequence's keys up to its position, which lie in pages.

    Beside the arguments of ``_place``: LONGEST, the tokens of the longest sequence; OUT (tokens,
    heads * dim); SCRATCH (threads, longest + dim) float32; WINDOW or 0; SCALE; SOFTCAP or 0; SINKS
    (heads,) float32 or 0; PLACES, whether each token, the last of its sequence, is placed first.
    """
    num_tasks, kv_heads = a[of.TOKENS] * a[of.KV_HEADS], a[of.KV_HEADS]
    scores = float32_at(own(a, a[of.SCRATCH], 4 * (a[of.LONGEST] + a[of.DIM])))
    for task in tasks(a, num_tasks):
        if a[of.PLACES] != 0:
            _place_head(a, at, task // kv_heads, task % kv_heads)
        _attend_head(a, at, task // kv_heads, task % kv_heads, scores)


@njit(fastmath=FAST, error_model="numpy")
def _attend_head(a, at, token, kv_head, scores):
    """Attention of the queries of one head of keys."""
    heads, dim, size, longest = a[of.HEADS], a[of.DIM], a[of.PAGE_ROWS], a[of.LONGEST]
    queries, keys, values = at(a[of.QUERIES]), at(a[of.KEYS]), at(a[of.VALUES])
    out, scale = at(a[of.OUT]), float_of(a[of.SCALE])
    table, groups = _int32_at(a[of.TABLE]), heads // a[of.KV_HEADS]
    end = _int32_at(a[of.POSITIONS])[token] + 1
    begin = max(0, end - a[of.WINDOW]) if a[of.WINDOW] else 0
    first = _int32_at(a[of.SEQUENCES])[token] * a[of.TABLE_PAGES] + begin // size
    skipped, head_at = begin % size, kv_head * a[of.HEAD_ROWS]
    query = token * a[of.TOKEN_STEP] + kv_head * a[of.HEAD_STEP]
    for head in range(kv_head * groups, (kv_head + 1) * groups):
        done, page, skip = 0, first, skipped
        while done < end - begin:
            count = _run(table, page, skip, size, end - begin - done)
            row = head_at + table[page] * size + skip
            score(queries, query, keys, row * dim, count, dim, scale, scores, done)
            done, page, skip = done + count, page + (skip + count) // size, 0
        num_scores = end - begin
        if a[of.SOFTCAP] != 0:
            _cap(scores, num_scores, float_of(a[of.SOFTCAP]))
        if a[of.SINKS] != 0:  # https://arxiv.org/abs/2309.17453, one more score of no value
            store(scores, num_scores, load(float32_at(a[of.SINKS]), head))
            num_scores += 1
        total = softmax(scores, num_scores)
        for i in range(dim):
            store(scores, longest + i, _ZERO)
        done, page, skip = 0, first, skipped
        while done < end - begin:
            count = _run(table, page, skip, size, end - begin - done)
            row = head_at + table[page] * size + skip
            _weigh(values, row * dim, count, dim, scores, done, longest)
            done, page, skip = done + count, page + (skip + count) // size, 0
        to = (token * heads + head) * dim
        for i in range(dim):
            store(out, to + i, load(scores, longest + i) / total)
        query += dim


@njit(error_model="numpy")
def _run(table, page, skip, size, most):
    """Counts the rows that lie one after another, from row ``skip`` of a page on: at most ``most``.
    Pages that follow each other are read as one.
    """
    count = size - skip
    while count < most and table[page + 1] == table[page] + 1:
        count, page = count + size, page + 1
    return min(count, most)


@njit(fastmath=FAST, error_model="numpy")
def _cap(scores, count, softcap):
    """softcap * tanh(scores / softcap), https://arxiv.org/abs/2408.00118."""
    for j in range(count):
        power = exp(load(scores, j) * (_TWO / softcap))
        store(scores, j, softcap - softcap * _TWO / (power + _ONE))


@njit(error_model="numpy", inline="always")
def store_four(out, to, a, b, c, d):
    store(out, to, a)
    store(out, to + 1, b)
    store(out, to + 2, c)
    store(out, to + 3, d)


@njit(fastmath=FAST, error_model="numpy")
def score(q, query, k, at, count, dim, scale, scores, to):
    """scores[to + j] = scale * q . k[j], four keys at a time: the query is read once for them."""
    whole = count - count % _ROW_BLOCK
    for j in range(0, whole, _ROW_BLOCK):
        first = at + j * dim
        s0, s1, s2, s3 = _ZERO, _ZERO, _ZERO, _ZERO
        for i in range(dim):
            value = load(q, query + i)
            s0 += value * load(k, first + i)
            s1 += value * load(k, first + dim + i)
            s2 += value * load(k, first + 2 * dim + i)
            s3 += value * load(k, first + 3 * dim + i)
        store_four(scores, to + j, s0 * scale, s1 * scale, s2 * scale, s3 * scale)
    for j in range(whole, count):
        s0 = _ZERO
        for i in range(dim):
            s0 += load(q, query + i) * load(k, at + j * dim + i)
        store(scores, to + j, s0 * scale)


@njit(fastmath=FAST, error_model="numpy")
def softmax(scores, count):
    """scores[j] = exp(scores[j] - max); returns their sum, NaN where a score is."""
    take_wide_vectors()
    largest = load(scores, 0)
    for j in range(1, count):
        largest = larger(largest, load(scores, j))
    total = _ZERO
    for j in range(count):
        weight = exp(load(scores, j) - largest)
        store(scores, j, weight)
        total += weight
    return total


@njit(fastmath=FAST, error_model="numpy")
def _weigh(v, at, count, dim, scores, first, to):
    """scores[to : to+dim] += sum of scores[first + j] * v[j], four values at a time."""
    whole = count - count % _ROW_BLOCK
    for j in range(0, whole, _ROW_BLOCK):
        here = at + j * dim
        w0, w1 = load(scores, first + j), load(scores, first + j + 1)
        w2, w3 = load(scores, first + j + 2), load(scores, first + j + 3)
        for i in range(dim):
            pair = w0 * load(v, here + i) + w1 * load(v, here + dim + i)
            other = w2 * load(v, here + 2 * dim + i) + w3 * load(v, here + 3 * dim + i)
            store(scores, to + i, load(scores, to + i) + pair + other)
    for j in range(whole, count):
        w0 = load(scores, first + j)
        for i in range(dim):
            store(scores, to + i, load(scores, to + i) + w0 * load(v, at + j * dim + i))


# Only "contract": NaN and infinity must stay, so that a broken row shows in its own logits.
@njit(fastmath={"contract"}, error_model="numpy")
def _digits(a, at):
    """Quantizes each row to digits of 8 bits, as devices/prepacked_linear.py says.

    2 rows, 3 size, 4 x (rows, size), 5 parts (rows,) float32, 6 out (digits, rows, size) bytes,
    7 digits, 1 or 2.
    """
    rows, size, x, is_two = a[2], a[3], at(a[4]), a[7] == 2
    parts, out, shift = float32_at(a[5]), bytes_at(a[6]), np.int32(8 if is_two else 0)
    largest, zero = (_TWO_DIGITS, _TWO_DIGITS_FROM) if is_two else (_ONE_DIGIT, _ONE_DIGIT_FROM)
    for row in tasks(a, rows):
        first, low = row * size, (rows + row) * size
        bits = _SMALLEST_MAXIMUM
        for i in range(size):
            here = size_bits(load(x, first + i))
            bits = here if here > bits else bits
        scale = largest / of_bits(bits)
        for i in range(size):
            number = np.int32(load(x, first + i) * scale + zero)
            out[first + i] = np.uint8(number >> shift)
            if is_two:
                out[low + i] = np.uint8(number)
        store(parts, row, of_bits(bits) / largest)


@njit(fastmath={"contract"}, error_model="numpy")
def _combine(a, at):
    """2 rows, 3 size, 4 products (digits, rows, size), 5 parts (rows,), 6 offsets (size,), 7 bias
    (size,), all float32, 8 out (rows, size), 9 digits, 1 or 2.
    """
    rows, size, is_two = a[2], a[3], a[9] == 2
    y, parts, out = float32_at(a[4]), float32_at(a[5]), at(a[8])
    offsets, bias = float32_at(a[6]), float32_at(a[7])
    for row in tasks(a, rows):
        first, low, part = row * size, (rows + row) * size, load(parts, row)
        for i in range(size):
            whole = load(y, first + i)
            if is_two:
                whole = whole * _BASE + load(y, low + i)
            store(out, first + i, (whole - load(offsets, i)) * part + load(bias, i))


_gelu_tanh_mul = njit(lambda a, at: _gated(a, at, _gelu_tanh))
_silu_mul = njit(lambda a, at: _gated(a, at, _silu))

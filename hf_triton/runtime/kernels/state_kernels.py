"""Updates states of convolutions and recurrences, in loops over the tokens of each sequence.

A step's tokens lie in one row; ``runs`` (count, 6) int64 say which of them are whose: first row,
number of tokens, slot, 1 where the sequence begins there, so that its state is 0 before; and the
number of tokens after which the state is copied, or 0, and to which slot. A run is one task for
each head or block of channels. Recurrent states are float32. Arguments are as in kernels.py;
strides are in numbers, from a token to the next.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .kernels import FAST, exp, float32_at, float_of, integers_at, load, own, rounded, store, tasks
from .layout import CHANNELS

_ZERO, _ONE = np.float32(0), np.float32(1)
_SMALL = np.float32(1e-6)
_COLUMNS = 6


@njit(fastmath=FAST, error_model="numpy", inline="always")
def _clear(x, begin, end):
    for i in range(begin, end):
        store(x, i, _ZERO)


@njit(fastmath=FAST, error_model="numpy", inline="always")
def _copy(x, begin, end, to):
    for i in range(begin, end):
        store(to, i, load(x, i))


@njit(fastmath=FAST, error_model="numpy", inline="always")
def _weigh(sums, x, at, weight, weight_at, count):
    for i in range(count):
        store(sums, i, load(sums, i) + load(x, at + i) * load(weight, weight_at + i))


@njit(fastmath=FAST, error_model="numpy", inline="always")
def _shift(x, first, stride, begin, num_tokens, states, state, to, a, count, is_new):
    """states[to] = the newest of states[state] and of ``num_tokens`` rows of ``x``."""
    channels, length = a[4], a[9]
    for place in range(length):
        source, row = num_tokens - length + place, place * channels
        for i in range(count):
            if source >= 0:
                value = load(x, (first + source) * stride + begin + i)
            elif is_new == 0:
                value = load(states, state + row + num_tokens * channels + i)
            else:
                value = _ZERO
            store(states, to + row + i, value)


@njit(fastmath=FAST, error_model="numpy")
def _conv(a, at):
    """A causal convolution of each channel, and its SiLU where asked for.

    2 runs, 3 their count, 4 channels, 5 kernel size, 6 x (tokens, channels), 7 its stride, 8 states
    (slots, length, channels), the newest last, 9 length, 10 weight (kernel size, channels) and 11
    bias (channels,) or 0, float32, 12 out (tokens, channels), 13 whether SiLU, 14 scratch (threads,
    256).
    """
    x, states, out = at(a[6]), at(a[8]), at(a[12])
    runs, num_runs, channels, size = integers_at(a[2]), a[3], a[4], a[5]
    stride, length, weight, bias = a[7], a[9], float32_at(a[10]), float32_at(a[11])
    sums = float32_at(own(a, a[14], 4 * CHANNELS))
    blocks = (channels + CHANNELS - 1) // CHANNELS
    for task in tasks(a, num_runs * blocks):
        run, begin = task // blocks * _COLUMNS, task % blocks * CHANNELS
        count = min(CHANNELS, channels - begin)
        first, num_tokens, is_new = runs[run], runs[run + 1], runs[run + 3]
        state = runs[run + 2] * length * channels + begin
        for token in range(num_tokens):
            for i in range(count):
                store(sums, i, load(bias, begin + i) if a[11] != 0 else _ZERO)
            for tap in range(size):
                source, weight_at = token - size + 1 + tap, tap * channels + begin
                if source >= 0:
                    _weigh(sums, x, (first + source) * stride + begin, weight, weight_at, count)
                elif is_new == 0:
                    row = state + (length + source) * channels
                    _weigh(sums, states, row, weight, weight_at, count)
            to = (first + token) * channels + begin
            for i in range(count):
                value = rounded(out, load(sums, i))
                store(out, to + i, value / (_ONE + exp(-value)) if a[13] != 0 else value)
        if runs[run + 4] != 0:
            to = runs[run + 5] * length * channels + begin
            _shift(x, first, stride, begin, runs[run + 4], states, state, to, a, count, is_new)
        _shift(x, first, stride, begin, num_tokens, states, state, state, a, count, is_new)


@njit(fastmath=FAST, error_model="numpy", inline="always")
def _unit(x, at, size, scale, is_normalised, out):
    """``scale`` times a vector, divided by its length where it ``is_normalised``."""
    if is_normalised != 0:
        total = _SMALL
        for i in range(size):
            total += load(x, at + i) * load(x, at + i)
        scale = scale / np.sqrt(total)
    for i in range(size):
        store(out, i, load(x, at + i) * scale)


@njit(fastmath=FAST, error_model="numpy")
def _delta_rule(a, at):
    """The gated delta rule, https://arxiv.org/abs/2412.06464; with a gate for each channel that of
    https://arxiv.org/abs/2510.26692.

    2 runs, 3 their count, 4 key heads, 5 value heads, 6 key dim, 7 value dim, 8 q and 9 k (tokens,
    key heads, key dim), 10 v (tokens, value heads, value dim), 11 to 13 their strides, 14 g
    (tokens, value heads) or (tokens, value heads, key dim) float32, 15 whether for each channel, 16
    beta (tokens, value heads), 17 states (slots, value heads, value dim, key dim) float32, 18 out
    like v, 19 whether q and k are normalised, 20 scale of q, 21 scratch (threads, 4 key dim).
    """
    q, k, v, beta, out = at(a[8]), at(a[9]), at(a[10]), at(a[16]), at(a[18])
    runs, num_runs, heads, size, dim = integers_at(a[2]), a[3], a[5], a[6], a[7]
    group, g, scale = heads // a[4], float32_at(a[14]), float_of(a[20])
    scratch = own(a, a[21], 16 * size)
    key, query = float32_at(scratch), float32_at(scratch + 4 * size)
    decays, seen = float32_at(scratch + 8 * size), float32_at(scratch + 12 * size)
    for task in tasks(a, num_runs * heads):
        run, head = task // heads * _COLUMNS, task % heads
        first = runs[run]
        state = float32_at(a[17] + 4 * (runs[run + 2] * heads + head) * dim * size)
        if runs[run + 3] != 0:
            _clear(state, 0, dim * size)
        for token in range(first, first + runs[run + 1]):
            place, key_at = token * heads + head, head // group * size
            _unit(k, token * a[12] + key_at, size, _ONE, a[19], key)
            _unit(q, token * a[11] + key_at, size, scale, a[19], query)
            if a[15] != 0:
                for i in range(size):
                    store(decays, i, exp(load(g, place * size + i)))
            else:
                decay = exp(load(g, place))
                for i in range(size):
                    store(decays, i, decay)
            for i in range(size):
                store(seen, i, load(key, i) * load(decays, i))
            rate, value_at = load(beta, place), token * a[13] + head * dim
            for j in range(dim):
                row, held, total = j * size, _ZERO, _ZERO
                for i in range(size):
                    held += load(state, row + i) * load(seen, i)
                delta = (load(v, value_at + j) - held) * rate
                for i in range(size):
                    now = load(state, row + i) * load(decays, i) + load(key, i) * delta
                    store(state, row + i, now)
                    total += now * load(query, i)
                store(out, place * dim + j, total)
            if token + 1 == first + runs[run + 4]:
                kept = float32_at(a[17] + 4 * (runs[run + 5] * heads + head) * dim * size)
                _copy(state, 0, dim * size, kept)


@njit(fastmath=FAST, error_model="numpy")
def _scan(a, at):
    """Mamba's selective scan, https://arxiv.org/abs/2312.00752; and Mamba 2's recurrence,
    https://arxiv.org/abs/2405.21060, where the channels of a head decay alike.

    2 runs, 3 their count, 4 heads, 5 channels of each, 6 state size, 7 heads that share b and c, 8
    heads of a task, 9 x (tokens, heads, channels), 10 b and 11 c (tokens, groups, state size), 12
    to 14 their strides, 15 dt (tokens, heads), 16 A (heads, state size) or (heads,), 17 whether for
    each state, 18 D (heads,), 19 states (slots, heads, channels, state size), these float32, 20 out
    like x, float32 where there is no 21 z, like x, or 0; 22 its stride, 23 scratch (threads, 3
    state size).
    """
    x, b, c, z, out, wide = at(a[9]), at(a[10]), at(a[11]), at(a[21]), at(a[20]), float32_at(a[20])
    runs, num_runs, heads, dim, size = integers_at(a[2]), a[3], a[4], a[5], a[6]
    dt, rates, skips = float32_at(a[15]), float32_at(a[16]), float32_at(a[18])
    scratch = own(a, a[23], 12 * size)
    into, out_of = float32_at(scratch), float32_at(scratch + 4 * size)
    decays, blocks = float32_at(scratch + 8 * size), (heads + a[8] - 1) // a[8]
    is_for_each = a[17] != 0
    for task in tasks(a, num_runs * blocks):
        run, begin = task // blocks * _COLUMNS, task % blocks * a[8]
        end, first, group = min(begin + a[8], heads), runs[run], begin // a[7] * size
        state = float32_at(a[19] + 4 * runs[run + 2] * heads * dim * size)
        if runs[run + 3] != 0:
            _clear(state, begin * dim * size, end * dim * size)
        for token in range(first, first + runs[run + 1]):
            for n in range(size):
                store(into, n, load(b, token * a[13] + group + n))
                store(out_of, n, load(c, token * a[14] + group + n))
            for head in range(begin, end):
                step, decay = load(dt, token * heads + head), _ZERO
                if is_for_each:
                    for n in range(size):
                        store(decays, n, exp(load(rates, head * size + n) * step))
                else:
                    decay = exp(load(rates, head) * step)
                for i in range(head * dim, (head + 1) * dim):
                    value = load(x, token * a[12] + i)
                    more, total, row = value * step, _ZERO, i * size
                    for n in range(size):
                        kept = load(decays, n) if is_for_each else decay
                        now = load(state, row + n) * kept + more * load(into, n)
                        store(state, row + n, now)
                        total += now * load(out_of, n)
                    skipped, to = value * load(skips, head), token * heads * dim + i
                    if a[21] == 0:
                        store(wide, to, total + skipped)
                    else:
                        gate = load(z, token * a[22] + i)
                        gate = rounded(out, gate / (_ONE + exp(-gate)))
                        store(out, to, (rounded(out, total) + skipped) * gate)
            if token + 1 == first + runs[run + 4]:
                copied = float32_at(a[19] + 4 * runs[run + 5] * heads * dim * size)
                _copy(state, begin * dim * size, end * dim * size, copied)

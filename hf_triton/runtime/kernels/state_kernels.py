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
def _recurrence(a, at):
    """A state of each head, which decays, takes in a token's values times its key, and is read by
    its query: Mamba's selective scan (https://arxiv.org/abs/2312.00752, whose B are keys and C
    queries), Mamba 2's (https://arxiv.org/abs/2405.21060), where a head's numbers decay alike, and
    the gated delta rule (https://arxiv.org/abs/2412.06464; https://arxiv.org/abs/2510.26692 with a
    gate for each channel), which takes in values less what the state gave for the key.

    2 runs, 3 their count, 4 heads, 5 value dim, 6 key dim, 7 heads that share a key, 8 heads of a
    task, 9 values (tokens, heads, value dim), 10 keys and 11 queries (tokens, groups, key dim), 12
    to 14 their strides, 15 whether both are normalised, 16 scale of queries, 17 rates (tokens,
    heads), 18 gates (heads,) or (heads, key dim), 19 whether for each channel, 20 whether the delta
    rule, with gates of each token, which otherwise are times the rates; 21 states (slots, heads,
    value dim, key dim), 22 D (heads,) or 0, these float32, 23 out like values, float32 where there
    is no 24 z, like values, or 0; 25 its stride, 26 scratch (threads, 4 key dim).
    """
    v, k, q, z, out, wide = at(a[9]), at(a[10]), at(a[11]), at(a[24]), at(a[23]), float32_at(a[23])
    runs, num_runs, heads, dim, size = integers_at(a[2]), a[3], a[4], a[5], a[6]
    rates, gates, skips = float32_at(a[17]), float32_at(a[18]), float32_at(a[22])
    scratch, blocks, scale = own(a, a[26], 16 * size), (heads + a[8] - 1) // a[8], float_of(a[16])
    key, query = float32_at(scratch), float32_at(scratch + 4 * size)
    decays, seen = float32_at(scratch + 8 * size), float32_at(scratch + 12 * size)
    is_for_each, is_delta = a[19] != 0, a[20] != 0
    for task in tasks(a, num_runs * blocks):
        run, begin = task // blocks * _COLUMNS, task % blocks * a[8]
        end, first, group = min(begin + a[8], heads), runs[run], begin // a[7] * size
        state = float32_at(a[21] + 4 * runs[run + 2] * heads * dim * size)
        if runs[run + 3] != 0:
            for i in range(begin * dim * size, end * dim * size):
                store(state, i, _ZERO)
        for token in range(first, first + runs[run + 1]):
            _unit(k, token * a[13] + group, size, _ONE, a[15], key)
            _unit(q, token * a[14] + group, size, scale, a[15], query)
            for head in range(begin, end):
                rate, gate = load(rates, token * heads + head), head
                step, decay, skip = rate, _ZERO, load(skips, head) if a[22] != 0 else _ZERO
                if is_delta:
                    step, gate = _ONE, token * heads + head
                if is_for_each:
                    for n in range(size):
                        store(decays, n, exp(load(gates, gate * size + n) * step))
                else:
                    decay = exp(load(gates, gate) * step)
                if is_delta:
                    for n in range(size):
                        kept = load(decays, n) if is_for_each else decay
                        store(seen, n, load(key, n) * kept)
                for i in range(head * dim, (head + 1) * dim):
                    value, given, total, row = load(v, token * a[12] + i), _ZERO, _ZERO, i * size
                    if is_delta:
                        for n in range(size):
                            given += load(state, row + n) * load(seen, n)
                    more = (value - given) * rate
                    for n in range(size):
                        kept = load(decays, n) if is_for_each else decay
                        now = load(state, row + n) * kept + more * load(key, n)
                        store(state, row + n, now)
                        total += now * load(query, n)
                    skipped, to = value * skip, token * heads * dim + i
                    if a[24] == 0:
                        store(wide, to, total + skipped)
                    else:
                        by = load(z, token * a[25] + i)
                        by = rounded(out, by / (_ONE + exp(-by)))
                        store(out, to, (rounded(out, total) + skipped) * by)
            if token + 1 == first + runs[run + 4]:
                copied = float32_at(a[21] + 4 * runs[run + 5] * heads * dim * size)
                for i in range(begin * dim * size, end * dim * size):
                    store(copied, i, load(state, i))

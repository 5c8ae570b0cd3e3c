"""The products of a mixture's experts with the tokens that chose them, all experts in one loop.

Arguments are as in kernels.py. A pair is a token and one of its experts: number ``token * k + i``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .kernels import FAST, integers_at, load, score, store_four, tasks

_ZERO, _ONE = np.float32(0), np.float32(1)
_BLOCK, _OUTPUTS, _PAIRS = 64, 4, 4  # outputs of a task, and what is computed at a time


@njit(fastmath=FAST, error_model="numpy")
def _four_by_four(a, x, w, out, order, first, w0, to):
    """Four pairs, ``order[first : first + 4]``, by four outputs from ``to`` on."""
    size, num_outputs, per_row = a[3], a[4], a[9]
    p0, p1, p2, p3 = order[first], order[first + 1], order[first + 2], order[first + 3]
    x0, x1 = p0 // per_row * size, p1 // per_row * size
    x2, x3 = p2 // per_row * size, p3 // per_row * size
    w1, w2, w3 = w0 + size, w0 + 2 * size, w0 + 3 * size
    s00, s01, s02, s03 = _ZERO, _ZERO, _ZERO, _ZERO
    s10, s11, s12, s13 = _ZERO, _ZERO, _ZERO, _ZERO
    s20, s21, s22, s23 = _ZERO, _ZERO, _ZERO, _ZERO
    s30, s31, s32, s33 = _ZERO, _ZERO, _ZERO, _ZERO
    for i in range(size):
        a0, a1, a2, a3 = load(x, x0 + i), load(x, x1 + i), load(x, x2 + i), load(x, x3 + i)
        b = load(w, w0 + i)
        s00, s10, s20, s30 = s00 + a0 * b, s10 + a1 * b, s20 + a2 * b, s30 + a3 * b
        b = load(w, w1 + i)
        s01, s11, s21, s31 = s01 + a0 * b, s11 + a1 * b, s21 + a2 * b, s31 + a3 * b
        b = load(w, w2 + i)
        s02, s12, s22, s32 = s02 + a0 * b, s12 + a1 * b, s22 + a2 * b, s32 + a3 * b
        b = load(w, w3 + i)
        s03, s13, s23, s33 = s03 + a0 * b, s13 + a1 * b, s23 + a2 * b, s33 + a3 * b
    store_four(out, p0 * num_outputs + to, s00, s01, s02, s03)
    store_four(out, p1 * num_outputs + to, s10, s11, s12, s13)
    store_four(out, p2 * num_outputs + to, s20, s21, s22, s23)
    store_four(out, p3 * num_outputs + to, s30, s31, s32, s33)


@njit(error_model="numpy")
def _experts(a, at):
    """2 experts, 3 inputs, 4 outputs, a multiple of 4, 5 x (rows, inputs), 6 weights (experts,
    outputs, inputs), 7 starts (experts + 1,) and 8 order (pairs,), both int64: the pairs of an
    expert e are order[starts[e] : starts[e + 1]]; 9 pairs of a row of x, 10 out (pairs, outputs).
    """
    x, w, out = at(a[5]), at(a[6]), at(a[10])
    size, num_outputs, starts, order = a[3], a[4], integers_at(a[7]), integers_at(a[8])
    blocks = (num_outputs + _BLOCK - 1) // _BLOCK
    for task in tasks(a, a[2] * blocks):
        expert, begin = task // blocks, task % blocks * _BLOCK
        first, last = starts[expert], starts[expert + 1]
        whole = last - (last - first) % _PAIRS
        for to in range(begin, min(begin + _BLOCK, num_outputs), _OUTPUTS):
            rows = (expert * num_outputs + to) * size
            for place in range(first, whole, _PAIRS):
                _four_by_four(a, x, w, out, order, place, rows, to)
            for place in range(whole, last):
                pair = order[place]
                at_x, at_out = pair // a[9] * size, pair * num_outputs + to
                score(x, at_x, w, rows, _OUTPUTS, size, _ONE, out, at_out)

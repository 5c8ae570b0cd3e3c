"""Constants that compiled loops and their callers share; needs neither Numba nor torch."""

from __future__ import annotations

NUM_ARGUMENTS = 64
# Behind the arguments, which all threads read all the time, and in no cache line of theirs, are the
# counters that threads draw tasks from.
COUNTERS = 48
CHANNELS = 256  # of a block of a convolution, one task's

# The arguments of ``place`` and ``attend``, which share a list; kernels.py says what they are.
TOKENS, HEADS, KV_HEADS, DIM, HEAD_ROWS, PAGE_ROWS, LONGEST = range(2, 9)
QUERIES, TOKEN_STEP, HEAD_STEP, NEW_KEYS, NEW_VALUES, KEY_STEP = range(9, 15)
KEYS, VALUES, SEQUENCES, POSITIONS, TABLE, TABLE_PAGES = range(15, 21)
OUT, SCRATCH, WINDOW, SCALE, SOFTCAP, SINKS, PLACES = range(21, 28)
COS, SIN, ANGLES, IN_PAIRS, Q_NORM, K_NORM, EPS = range(28, 35)

"""Numbers that compiled loops and those who call them agree on; needs neither Numba nor torch."""

from __future__ import annotations

NUM_ARGUMENTS = 64
# Behind the arguments, which all threads read all the time, and in no cache line of theirs, are the
# counters that threads draw tasks from.
COUNTERS = 48
CHANNELS = 256  # of a block of a convolution, one task's

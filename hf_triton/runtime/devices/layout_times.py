"""Times layouts of linear layers, and stores the times for the next models on this machine. Knows
nothing of layouts but their source files, on which a time depends.
"""

from __future__ import annotations

import hashlib
import os
import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import disk_cache

_KIND = "layouts"
_REPEATS = 4
# How often in a second others may take a core from this process where times are to be trusted: one
# busy process does so a hundred times and more.
_MOST_INTERRUPTIONS = 30
_MOST_TIMINGS = 3  # measurements of one kind of layer where none is undisturbed
_CODE = ("layout_times.py", "linear_layouts.py", "int8_linear.py", "prepacked_linear.py")
_VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_")  # of the environment
_PROCESSOR = ("model name", "stepping", "cache size", "flags", "CPU", "Features")  # x86's, ARM's


class LayoutTimes:
    """Seconds by kind of layer and layout, for these numbers of rows and ``others`` (see
    seconds_of).
    """

    def __init__(self, rows: tuple[int, ...], others: torch.Tensor) -> None:
        self._rows, self._others = rows, others
        self._conditions = _conditions(rows, len(others))
        # Seconds, and how often they are still to be measured again: the least of several
        # disturbed times is near that of an idle machine.
        self._stored: dict[str, tuple[float, int]] = self._look_up()
        self._seconds = {key: seconds for key, (seconds, left) in self._stored.items() if not left}
        self._timed: set[str] = set()
        self._timed_s, self._num_interruptions = 0.0, 0
        self._alone: ExitStack | None = None

    def _look_up(self) -> dict[str, tuple[float, int]]:
        return disk_cache.get(_KIND, self._conditions) or {}

    def known(self, key: str) -> float:
        """The stored time; 0 where there is none."""
        return self._seconds.get(key, 0.0)

    def of(self, key: str, run: nn.Module, weight: torch.Tensor) -> float:
        """The stored time, or a measurement of ``run``, a layer of ``weight`` (out, in)."""
        if key not in self._seconds and self._alone is None:
            self._wait_for_others()
        if key not in self._seconds:
            begun_s, num_before = time.perf_counter(), num_interruptions()
            seconds = seconds_of(run, weight, self._rows, self._others)
            best, num_left = self._stored.get(key, (seconds, _MOST_TIMINGS))
            self._seconds[key] = min(seconds, best)
            self._timed_s += time.perf_counter() - begun_s
            self._num_interruptions += num_interruptions() - num_before
            self._stored[key] = self._seconds[key], num_left - 1
            self._timed.add(key)
        return self._seconds[key]

    def _wait_for_others(self) -> None:
        """Waits for other processes that time layers now, such as copies of one model, and takes
        their times: running together they would disturb each other.
        """
        self._alone = ExitStack()
        self._alone.enter_context(disk_cache.exclusive(disk_cache.path_of(_KIND, self._conditions)))
        before, self._stored = self._stored, self._look_up()
        if self._stored != before:
            self._seconds = {key: s for key, (s, _) in self._stored.items()} | self._seconds

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Stores the measured times at the end of the block; holds a lock against other processes
        that time.
        """
        try:
            yield
            if self._timed:
                is_quiet = self._num_interruptions <= max(1.0, _MOST_INTERRUPTIONS * self._timed_s)
                known = {key: (self._seconds[key], 0) for key in self._timed if is_quiet}
                disk_cache.put(_KIND, self._conditions, self._stored | known)
        finally:
            if self._alone is not None:
                self._alone.close()


def num_interruptions() -> int:
    """How often other processes have taken a core from this one so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _conditions(rows: tuple[int, ...], num_other_bytes: int) -> tuple[Any, ...]:
    """The conditions of a time beside the layer: processor, threads, torch and our code."""
    lines: tuple[str, ...] = ()
    with suppress(OSError):
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
        lines = tuple(line for line in first.splitlines() if line.startswith(_PROCESSOR))
    variables = tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(_VARIABLES)))
    code = b"".join(Path(__file__).parent.joinpath(name).read_bytes() for name in _CODE)
    threads = torch.get_num_threads()
    processor = (lines, variables, torch.__version__, threads, hashlib.sha256(code).hexdigest())
    return (*processor, rows, num_other_bytes)


@torch.inference_mode()
def seconds_of(
    run: nn.Module, weight: torch.Tensor, rows: tuple[int, ...], others: torch.Tensor
) -> float:
    """The geometric mean over the numbers of rows, so that a gain for one row weighs as much as one
    for many, of the best of a few runs; ``weight`` is (out, in), ``others`` as in ``_once``.
    """
    best = []
    for num_rows in rows:
        x = torch.ones(1, num_rows, weight.shape[1], dtype=weight.dtype)
        run(x)
        best.append(min(_once(run, x, others) for _ in range(_REPEATS)))
    return statistics.geometric_mean(best)


def _once(run: nn.Module, x: torch.Tensor, others: torch.Tensor) -> float:
    """Seconds of one run after ``others``, as many bytes as the model's weights, were touched: what
    a cache does not hold beside them, it does not hold when the model runs either.

    They are the calling thread's processor time: its part of the work, and of the wait for the
    team's others what it does not sleep through. By the clock, other processes would decide.
    """
    others.add_(1)
    start = time.thread_time()
    run(x)
    return time.thread_time() - start

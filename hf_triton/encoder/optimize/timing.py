"""Times engines in alternating rounds, one run each, so that other load on the machine slows all of
them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..runners.runner import Runner, RunnerSetup, random_encodings
from ..texts.encoding import Encoding

MIN_ROUNDS = 5
MAX_ROUNDS = 500


@dataclass(frozen=True)
class Timing:
    """One engine at one sequence length (tokens) and batch size (texts)."""

    length: int
    batch_size: int
    engine: str
    median_ms: float
    p95_ms: float
    ratio_to_plain: float  # the median of plain PyTorch, divided by this median
    seconds: list[float]  # of every run, in order


def timings(
    setup: RunnerSetup, runners: Mapping[str, Runner], shape: tuple[int, int], seconds: float
) -> list[Timing]:
    """One Timing for each runner; ratios are to the first. ``shape`` is (length, batch size);
    ``seconds`` is the budget of all runners together, with at least MIN_ROUNDS runs each.
    """
    length, batch_size = shape
    batch = random_encodings(setup, [length] * batch_size)
    for runner in runners.values():
        runner.forward(batch)
    names, end_s = list(runners), time.monotonic() + seconds
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(MAX_ROUNDS):
        if number >= MIN_ROUNDS and time.monotonic() >= end_s:
            break
        first = number % len(names)  # as many runs of each
        for name in names[first:] + names[:first]:
            samples[name].append(_timed(runners[name], batch, setup.device))
    plain_s = statistics.median(samples[names[0]])
    return [
        Timing(
            *shape,
            name,
            median_ms=1e3 * statistics.median(times),
            p95_ms=1e3 * float(np.percentile(times, 95)),
            ratio_to_plain=plain_s / statistics.median(times),
            seconds=[round(one, 7) for one in times],
        )
        for name, times in samples.items()
    ]


def _timed(runner: Runner, batch: Sequence[Encoding], device: torch.device) -> float:
    began_s = time.perf_counter()
    runner.forward(batch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began_s

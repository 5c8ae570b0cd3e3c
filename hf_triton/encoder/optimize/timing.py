"""Times engines in turns, one run each per round, so that whatever else the machine does slows all
of them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..runners.runner import Runner, RunnerSetup, random_encodings
from ..texts.encoding import Encoding

MIN_ROUNDS = 5
MAX_ROUNDS = 500


@dataclass(frozen=True)
class Timing:
    """One engine at one sequence length (tokens) and batch size (texts); all times in ms."""

    length: int
    batch_size: int
    engine: str
    runs: int
    mean_ms: float
    sd_ms: float
    min_ms: float
    max_ms: float
    median_ms: float
    p95_ms: float
    p99_ms: float
    ratio_to_plain: float  # the median of plain PyTorch, divided by this median
    seconds: tuple[float, ...]  # of every run, in order


def timings(
    setup: RunnerSetup,
    runners: Mapping[str, Runner],
    shape: tuple[int, int],
    seconds: float,
) -> list[Timing]:
    """One Timing for each runner, the first of which is what the ratios are to.

    ``shape`` is (length, batch size); ``seconds`` is for all runners together, of which each gets
    MIN_ROUNDS runs at least.
    """
    length, batch_size = shape
    batch = random_encodings(setup, [length] * batch_size)
    names = list(runners)
    for runner in runners.values():
        runner.forward(batch)
    samples: dict[str, list[float]] = {name: [] for name in names}
    end = time.monotonic() + seconds
    for number in range(MAX_ROUNDS):
        if number >= MIN_ROUNDS and time.monotonic() >= end:
            break
        # Each is first as often as any other.
        for index in range(len(names)):
            name = names[(number + index) % len(names)]
            samples[name].append(_timed(runners[name], batch, setup.device))
    plain_s = statistics.median(samples[names[0]])
    return [_timing(shape, name, samples[name], plain_s) for name in names]


def _timed(runner: Runner, batch: Sequence[Encoding], device: torch.device) -> float:
    began_s = time.perf_counter()
    runner.forward(batch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began_s


def _timing(
    shape: tuple[int, int], engine: str, samples: Sequence[float], plain_s: float
) -> Timing:
    ordered = sorted(samples)
    median_s = statistics.median(ordered)
    return Timing(
        *shape,
        engine,
        len(ordered),
        mean_ms=statistics.fmean(ordered) * 1e3,
        sd_ms=statistics.stdev(ordered) * 1e3,
        min_ms=ordered[0] * 1e3,
        max_ms=ordered[-1] * 1e3,
        median_ms=median_s * 1e3,
        p95_ms=percentile(ordered, 0.95) * 1e3,
        p99_ms=percentile(ordered, 0.99) * 1e3,
        ratio_to_plain=plain_s / median_s,
        seconds=tuple(round(sample, 7) for sample in samples),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The percentile of ascending values, interpolated as numpy does."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)

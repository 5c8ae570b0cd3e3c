"""Prepares the engines that ``hf-triton optimize`` compares, as a served model does, checks them
against plain PyTorch, and times them in alternating rounds, one run each, so that other load on the
machine slows all of them alike.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.weights.served_model import ServedModel

from ..loading import RUNNERS
from ..onnx.runner import INT8_TOLERANCE
from ..options import EncoderOptions
from ..runners.padded_runner import PaddedRunner
from ..runners.runner import (
    Runner,
    RunnerSetup,
    largest_difference,
    random_encodings,
    reference_forward,
    tolerance_of,
)
from ..texts.encoding import Encoding

PLAIN = "plain PyTorch"
# Name on the command line -> the options of models.yaml.
ENGINES: dict[str, dict[str, str]] = {
    "torch": {"engine": "torch"},
    "torch-compile": {"engine": "torch-compile"},
    "onnxruntime": {"engine": "onnxruntime"},
    "onnxruntime-int8": {"engine": "onnxruntime", "quantization": "int8"},
}
MIN_ROUNDS = 5
MAX_ROUNDS = 500


@dataclass
class Candidate:
    """An engine that was tried. ``runner`` is None if it was refused; ``refusal`` is the reason."""

    name: str
    runner: Runner | None = None
    refusal: str = ""
    difference: float | None = None
    tolerance: float | None = None
    seconds_to_ready: float = 0.0
    options: dict[str, str] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """How it computes, such as ``packed tokens``."""
        return "" if self.runner is None else self.runner.name


def candidates(
    setup: RunnerSetup,
    served: ServedModel,
    options: EncoderOptions,
    names: Sequence[str],
    tolerance: float | None,
    lengths: Sequence[int],
) -> Iterator[Candidate]:
    """Yields plain PyTorch, then each engine of ``names``, prepared on demand. ``tolerance``
    replaces each engine's own; ``lengths`` are checked in addition to the defaults.
    """
    plain = PaddedRunner(setup)
    plain.name = "the model as transformers loads it, padded batches"
    yield Candidate(PLAIN, plain, difference=0.0)
    scene = random_encodings(setup) + random_encodings(setup, lengths)
    expected = [reference_forward(setup, encoding) for encoding in scene]
    for name in names:
        one = Candidate(name, options=ENGINES[name])
        own = INT8_TOLERANCE if name.endswith("int8") else tolerance_of(setup.model)
        one.tolerance = own if tolerance is None else tolerance
        began_s = time.monotonic()
        try:
            runner = _make_runner(name, setup, served, options)
            one.difference = largest_difference(runner.forward(scene), expected)
            if one.difference <= one.tolerance:
                one.runner = runner
            else:
                one.refusal = (
                    f"differs from plain PyTorch by {one.difference:.2g}, allowed is "
                    f"{one.tolerance:g}"
                )
        except Exception as error:
            # Any failure refuses this engine; the others are still compared.
            kind = "" if isinstance(error, LoadError) else f"{type(error).__name__}: "
            one.refusal = f"{kind}{reason(error)}"
        one.seconds_to_ready = time.monotonic() - began_s
        yield one


def _make_runner(
    name: str, setup: RunnerSetup, served: ServedModel, options: EncoderOptions
) -> Runner:
    """The engine's runner of a copy of the model, which it may change."""
    if served.quantization is not None and name != "torch":
        raise LoadError("quantization: computes whole weights; torch computes quantized ones")
    changes: dict[str, Any] = {"quantization": "none", **ENGINES[name]}
    chosen = dataclasses.replace(options, **changes)
    own = dataclasses.replace(setup, model=copy.deepcopy(setup.model))
    return RUNNERS[chosen.engine](own, served, chosen)


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

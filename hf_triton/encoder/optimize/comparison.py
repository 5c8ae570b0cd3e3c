"""Compares a model's engines: prepares each as a served model does, checks it against plain
PyTorch, times all in alternating rounds, one run each, so that other load on the machine slows all
of them alike, and reports as text and JSON.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch

from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.weights.served_model import ServedModel

from ..encoder_loading import RUNNERS
from ..onnx.onnx_runner import INT8_TOLERANCE
from ..options import EncoderOptions
from ..runners.encoder_runner import (
    Runner,
    RunnerSetup,
    largest_difference,
    random_encodings,
    reference_forward,
    tolerance_of,
)
from ..runners.padded_runner import PaddedRunner
from ..texts.encoding import Encoding

PLAIN = "plain PyTorch"
# Name on the command line -> the options of models.yaml.
ENGINES: dict[str, dict[str, str]] = {
    "torch": {"engine": "torch"},
    "onnxruntime": {"engine": "onnxruntime"},
    "onnxruntime-int8": {"engine": "onnxruntime", "quantization": "int8"},
}
MIN_ROUNDS = 5
MAX_ROUNDS = 500
SCHEMA_VERSION = 2
_MIN_GAIN = 1.05  # a smaller speedup is not worth a line in models.yaml


@dataclass
class Candidate:
    """An engine that was tried: ``runner`` is how it computes; None if it was refused, for the
    reason ``refusal``.
    """

    name: str
    runner: Runner | None = None
    refusal: str = ""
    difference: float | None = None
    tolerance: float | None = None
    seconds_to_ready: float = 0.0
    options: dict[str, str] = field(default_factory=dict)


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
            if served.quantization is not None and name != "torch":
                raise LoadError("it can't compute weights of the key quantization; torch can")
            changes: dict[str, Any] = {"quantization": "none", **ENGINES[name]}
            chosen = dataclasses.replace(options, **changes)
            # No variable holds the copy: a refused engine's must be freed before the next is made.
            runner = RUNNERS[chosen.engine](
                dataclasses.replace(setup, model=copy.deepcopy(setup.model)), served, chosen
            )
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
        first = number % len(names)  # each begins equally many rounds
        for name in names[first:] + names[:first]:
            samples[name].append(_seconds(runners[name], batch, setup.device))
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


def _seconds(runner: Runner, batch: Sequence[Encoding], device: torch.device) -> float:
    began_s = time.perf_counter()
    runner.forward(batch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began_s


@dataclass
class Report:
    """One run. An interrupted one is not ``complete``; its results are valid. ``about`` describes
    model and machine; ``named_engine`` is models.yaml's.
    """

    about: Mapping[str, object]
    named_engine: str
    candidates: list[Candidate] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    complete: bool = False

    @property
    def named_is_refused(self) -> bool:
        return any(one.name == self.named_engine and one.refusal for one in self.candidates)


def to_json(report: Report) -> str:
    engines = []
    for one in report.candidates:
        engine = {name: value for name, value in vars(one).items() if name != "runner"}
        engine["status"] = "refused" if one.refusal else "ok"
        engine["description"] = one.runner.name if one.runner else ""
        engine["difference"] = one.difference if one.difference != math.inf else None
        engines.append(engine)
    value = {
        "schema_version": SCHEMA_VERSION,
        "complete": report.complete,
        **report.about,
        "named_engine": report.named_engine,
        "engines": engines,
        "timings": [asdict(timing) for timing in report.timings],
        "choice": choice(report),
    }
    return json.dumps(value, indent=2) + "\n"


def to_text(report: Report) -> str:
    shapes = groupby(report.timings, lambda timing: (timing.length, timing.batch_size))
    parts = [_table(*shape, list(rows)) for shape, rows in shapes]
    parts += ["\n".join(_agreements(report)), str(choice(report)["text"])]
    return "\n\n".join(filter(None, parts)) + "\n"


def choice(report: Report) -> dict[str, object]:
    """The fastest engine over all shapes that does not round weights: its options for models.yaml,
    its speedup over plain PyTorch (geometric mean of the medians' ratios), and a sentence that also
    mentions int8 if that is faster.
    """
    speedups = {
        one.name: statistics.geometric_mean(ratios)
        for one in report.candidates
        if one.options and not one.refusal
        if (ratios := [t.ratio_to_plain for t in report.timings if t.engine == one.name])
    }
    exact = {name: speedup for name, speedup in speedups.items() if not name.endswith("int8")}
    if not exact:
        return {"engine": None, "options": None, "speedup": None, "text": ""}
    best = max(exact, key=exact.__getitem__)
    if exact[best] < exact.get("torch", 0.0) * _MIN_GAIN:
        best = "torch"  # the default, unless another is clearly faster
    found, times = {one.name: one for one in report.candidates}, "times as fast as plain PyTorch"
    text = f"Choose {best}, {exact[best]:.2f} {times}: write {_yaml(found[best])} in models.yaml"
    # Rounded weights change the model's answers, so they are never recommended.
    for name in speedups.keys() - exact.keys():
        if speedups[name] > exact[best] * _MIN_GAIN:
            text += (
                f"; where a difference of {found[name].difference:.2g} does not matter, "
                f"{_yaml(found[name])} is {speedups[name]:.2f} {times}"
            )
    options = found[best].options
    return {"engine": best, "options": options, "speedup": exact[best], "text": f"{text}."}


def _yaml(one: Candidate) -> str:
    pairs = ", ".join(f"{name}: {value}" for name, value in one.options.items())
    return f"`options: {{{pairs}}}`"


def _table(length: int, batch_size: int, rows: Sequence[Timing]) -> str:
    texts = "text" if batch_size == 1 else "texts"
    width = max(len(row.engine) for row in rows)
    lines = [
        f"{length} tokens, {batch_size} {texts}, {len(rows[0].seconds)} runs each, ms",
        f"{'engine':{width}}    median       p95  x plain",
    ]
    lines += [
        f"{row.engine:{width}}  {row.median_ms:8.2f}  {row.p95_ms:8.2f}  {row.ratio_to_plain:7.2f}"
        for row in rows
    ]
    return "\n".join(lines)


def _agreements(report: Report) -> Iterator[str]:
    for one in report.candidates:
        if one.refusal:
            yield f"{one.name}: refused: {one.refusal}"
        elif one.name != PLAIN:
            yield (
                f"{one.name}: {one.runner.name if one.runner else ''}; differs from plain "
                f"PyTorch by at most {one.difference:.1e}, allowed is {one.tolerance:g}; ready in "
                f"{one.seconds_to_ready:.1f} s"
            )

"""What ``hf-triton optimize`` found, as a table and a sentence for people and as JSON for programs.

Computes nothing with models.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from .engines import PLAIN, Candidate
from .timing import Timing

SCHEMA_VERSION = 1
_COLUMNS = ("engine", "mean", "sd", "min", "max", "median", "p95", "p99", "x plain")
# Below this another engine is not worth a line in models.yaml.
_MIN_GAIN = 1.05


@dataclass(frozen=True)
class Report:
    """One run. ``complete`` is false where it was interrupted: what is there is right."""

    complete: bool
    command: str
    model: str
    source: str
    task: str
    dtype: str
    device: str
    named_engine: str  # the one that models.yaml says
    hardware: Mapping[str, str | int]
    versions: Mapping[str, str]
    candidates: Sequence[Candidate]
    timings: Sequence[Timing]

    @property
    def named_is_refused(self) -> bool:
        """Whether the model can't be served as models.yaml says."""
        return any(one.name == self.named_engine and one.refusal for one in self.candidates)


def to_json(report: Report) -> str:
    """The whole report; keys are the field names of Report, Candidate and Timing."""
    names = ("complete", "command", "model", "source", "task", "dtype", "device", "named_engine")
    value = {
        "schema_version": SCHEMA_VERSION,
        **{name: getattr(report, name) for name in names},
        "hardware": dict(report.hardware),
        "versions": dict(report.versions),
        "engines": [_engine(one) for one in report.candidates],
        "timings": [asdict(timing) for timing in report.timings],
        "choice": choice(report),
    }
    return json.dumps(value, indent=2) + "\n"


def to_text(report: Report) -> str:
    """The tables, one for each length and batch size, the refused engines, and what to choose."""
    parts = [_table(key, list(group)) for key, group in groupby(report.timings, _shape)]
    parts += ["\n".join(_agreements(report))]
    sentence = choice(report)["text"]
    return "\n\n".join([*parts, str(sentence)] if sentence else parts) + "\n"


def choice(report: Report) -> dict[str, object]:
    """The fastest engine over all shapes that computes what the model computes: its options for
    models.yaml, its speedup over plain PyTorch (geometric mean of the medians' ratios), and a
    sentence that also names int8 where that is faster still.
    """
    speedups = {
        one.name: _speedup(report.timings, one.name)
        for one in report.candidates
        if one.options and not one.refusal
    }
    measured = {name: speedup for name, speedup in speedups.items() if speedup}
    exact = {name: speedup for name, speedup in measured.items() if not name.endswith("int8")}
    if not exact:
        return {"engine": None, "options": None, "speedup": None, "text": ""}
    best = _best(exact)
    options = next(one.options for one in report.candidates if one.name == best)
    text = f"Choose {best}, {_times(exact[best])}: write {_yaml(options)} in models.yaml"
    # Of rounded weights: not what the model computes, so never chosen for the user.
    rounded = next((one for one in report.candidates if one.name.endswith("int8")), None)
    if rounded and measured.get(rounded.name, 0) > exact[best] * _MIN_GAIN:
        text += (
            f"; where a difference of {rounded.difference:.2g} does not matter, "
            f"{_yaml(rounded.options)} is {_times(measured[rounded.name])}"
        )
    return {"engine": best, "options": options, "speedup": exact[best], "text": f"{text}."}


def _best(speedups: Mapping[str, float]) -> str:
    """The fastest; ``torch``, the default, where nothing is clearly faster."""
    best = max(speedups, key=lambda name: speedups[name])
    default = speedups.get("torch")
    return "torch" if default and speedups[best] < default * _MIN_GAIN else best


def _speedup(timings: Sequence[Timing], engine: str) -> float | None:
    ratios = [timing.ratio_to_plain for timing in timings if timing.engine == engine]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def _times(speedup: float) -> str:
    return f"{speedup:.2f} times as fast as plain PyTorch"


def _yaml(options: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{name}: {value}" for name, value in options.items())
    return f"`options: {{{pairs}}}`"


def _shape(timing: Timing) -> tuple[int, int]:
    return timing.length, timing.batch_size


def _table(shape: tuple[int, int], rows: Sequence[Timing]) -> str:
    length, batch_size = shape
    texts = "text" if batch_size == 1 else "texts"
    title = f"{length} tokens, {batch_size} {texts}, {rows[0].runs} runs each, ms"
    cells = [
        (
            row.engine,
            *(
                f"{value:.2f}"
                for value in (
                    *(row.mean_ms, row.sd_ms, row.min_ms, row.max_ms),
                    *(row.median_ms, row.p95_ms, row.p99_ms, row.ratio_to_plain),
                )
            ),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *cells, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (_COLUMNS, *cells)
    ]
    return "\n".join([title, *lines])


def _agreements(report: Report) -> Iterator[str]:
    """One line on each engine: how far its answers are from plain PyTorch's."""
    for one in report.candidates:
        if one.name == PLAIN:
            continue
        if one.refusal:
            yield f"{one.name}: refused: {one.refusal}"
        else:
            yield (
                f"{one.name}: {one.description}; differs from plain PyTorch by at most "
                f"{one.difference:.1e}, allowed is {one.tolerance:g}; ready in "
                f"{one.seconds_to_ready:.1f} s"
            )


def _engine(one: Candidate) -> dict[str, object]:
    return {
        "name": one.name,
        "status": "refused" if one.refusal else "ok",
        "options": one.options,
        "description": one.description,
        "refusal": one.refusal,
        "difference": one.difference if one.difference != math.inf else None,
        "tolerance": one.tolerance,
        "seconds_to_ready": round(one.seconds_to_ready, 3),
    }

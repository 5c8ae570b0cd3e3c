"""The result of ``hf-triton optimize``: tables and a recommendation as text, and JSON. Computes
nothing with models.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby

from .comparison import PLAIN, Candidate, Timing

SCHEMA_VERSION = 2
# A smaller speedup is not worth a line in models.yaml.
_MIN_GAIN = 1.05


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
        """Whether the model can't be served as models.yaml says."""
        return any(one.name == self.named_engine and one.refusal for one in self.candidates)


def to_json(report: Report) -> str:
    """The whole report; keys are the field names of Report, Candidate and Timing."""
    value = {
        "schema_version": SCHEMA_VERSION,
        "complete": report.complete,
        **report.about,
        "named_engine": report.named_engine,
        "engines": [_engine(one) for one in report.candidates],
        "timings": [asdict(timing) for timing in report.timings],
        "choice": choice(report),
    }
    return json.dumps(value, indent=2) + "\n"


def to_text(report: Report) -> str:
    """The tables for each length and batch size, the refused engines, and the recommendation."""
    shapes = groupby(report.timings, lambda timing: (timing.length, timing.batch_size))
    parts = [_table(*shape, list(rows)) for shape, rows in shapes]
    parts += ["\n".join(_agreements(report)), str(choice(report)["text"])]
    return "\n\n".join(filter(None, parts)) + "\n"


def choice(report: Report) -> dict[str, object]:
    """The fastest engine over all shapes without rounding: its options for models.yaml, its speedup
    over plain PyTorch (geometric mean of the medians' ratios), and a sentence that also mentions
    int8 where that is faster.
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
        best = "torch"  # the default, where nothing is clearly faster
    found = {one.name: one for one in report.candidates}
    text = f"Choose {best}, {_times(exact[best])}: write {_yaml(found[best])} in models.yaml"
    # Rounded weights change the model's answers, so they are never recommended.
    for name in speedups.keys() - exact.keys():
        if speedups[name] > exact[best] * _MIN_GAIN:
            text += (
                f"; where a difference of {found[name].difference:.2g} does not matter, "
                f"{_yaml(found[name])} is {_times(speedups[name])}"
            )
    options = found[best].options
    return {"engine": best, "options": options, "speedup": exact[best], "text": f"{text}."}


def _times(speedup: float) -> str:
    return f"{speedup:.2f} times as fast as plain PyTorch"


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
    """One line for each engine: how far its outputs are from plain PyTorch's."""
    for one in report.candidates:
        if one.refusal:
            yield f"{one.name}: refused: {one.refusal}"
        elif one.name != PLAIN:
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

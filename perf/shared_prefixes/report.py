"""What shared prefixes save and cost, as JSON for programs and Markdown for readers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median

from perf.circumstances import circumstances


@dataclass(frozen=True)
class Effort:
    """``pairs`` of waiting times, and ``rounds`` of ``requests`` each, shared and not, in turns."""

    pairs: int
    rounds: int
    requests: int
    clients: tuple[int, ...] = (1, 8)


@dataclass
class FirstTokens:
    """Seconds to the first token of requests that ``clients`` send at once."""

    clients: int
    shared_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How many times faster with prefixes shared."""
        return median(self.alone_s) / median(self.shared_s)


@dataclass
class Throughput:
    """Rounds of requests that share nothing: (whether prefixes are shared, tokens, seconds, seconds
    of the processor).
    """

    what: str
    clients: int
    rounds: list[tuple[bool, int, float, float]] = field(default_factory=list)

    def ratios(self, column: int) -> list[float]:
        """Without / with, pair by pair: below 1 where sharing costs. 2: seconds, 3: processor."""
        pairs = zip(self.rounds[::2], self.rounds[1::2], strict=True)
        found = []
        for one, other in pairs:
            shared, alone = (one, other) if one[0] else (other, one)
            found.append(float(alone[column]) / float(shared[column]))
        return found


@dataclass(frozen=True)
class Figures:
    """All that was measured."""

    first_tokens: list[FirstTokens]
    throughput: list[Throughput]


@dataclass(frozen=True)
class Report:
    """The whole measurement."""

    created: str
    command: str
    commit: str
    hardware: Mapping[str, str | int | float]
    versions: Mapping[str, str]
    model: str
    load: Mapping[str, str | int | float]
    figures: Figures


def figures_of(line: str) -> Figures:
    """What the measuring process printed."""
    found = json.loads(line)
    return Figures(
        [FirstTokens(**one) for one in found["first_tokens"]],
        [
            Throughput(one["what"], one["clients"], [tuple(row) for row in one["rounds"]])
            for one in found["throughput"]
        ],
    )


def to_json(report: Report) -> str:
    """The whole report; ratios are left to the reader."""
    return json.dumps(asdict(report), indent=2) + "\n"


def to_markdown(report: Report) -> str:
    """The tables, and what they were measured on and with."""
    waiting = [
        _row("at once", "first token, shared", "not shared", "times faster"),
        _row(":--", "--:", "--:", "--:"),
        *(
            _row(
                str(one.clients),
                f"{median(one.shared_s) * 1e3:.1f} ms",
                f"{median(one.alone_s) * 1e3:.1f} ms",
                f"{one.ratio:.1f}",
            )
            for one in report.figures.first_tokens
        ),
    ]
    cost = [
        _row(
            "nothing in common", "clients", "with / without, tokens/s", "work done per CPU second"
        ),
        _row(":--", "--:", "--:", "--:"),
        *(
            _row(one.what, str(one.clients), _spread(one.ratios(2)), _spread(one.ratios(3)))
            for one in report.figures.throughput
        ),
    ]
    return "\n".join([*waiting, "", *cost, "", *circumstances(report)]) + "\n"


def _spread(ratios: list[float]) -> str:
    return f"{median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"

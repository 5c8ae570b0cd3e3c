"""The result of a comparison, as JSON for programs and Markdown for readers; measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol

from perf.load.measure import Level

SCHEMA_VERSION = 1
BASELINE, THROUGH_TRITON, IN_PROCESS = "tutorial model", "in-flight engine", "the same, in process"
EXPECTED_SPEEDUP = {1: 2.5, 8: 6.0, 32: 9.0, 64: 9.0}  # clients -> times the baseline's tokens/s
EXPECTED_OF_IN_PROCESS = 0.95

COLUMNS = (
    "clients",
    "served by",
    "useful tokens/s",
    "p50 s",
    "p90 s",
    "p99 s",
    "requests",
    "x baseline",
    "of in process",
)


@dataclass(frozen=True)
class Report:
    """One comparison: what, where, how, and the levels of each target in the order measured."""

    created: str  # ISO 8601, UTC
    command: str
    commit: str
    hardware: Mapping[str, str | int | float]
    versions: Mapping[str, str]
    model: str
    load: Mapping[str, str | int | float]
    levels: Mapping[str, list[Level]]
    schema_version: int = field(default=SCHEMA_VERSION)

    def problems(self) -> list[str]:
        """One line for each level in which an answer failed or had the wrong length."""
        return [
            f"{name}, {level.clients} clients: {level.num_problems} bad answers, "
            f"the first: {level.first_problem}"
            for name, levels in self.levels.items()
            for level in levels
            if level.num_problems
        ]


def to_json(report: Report) -> str:
    """The whole report; keys are the field names of ``Report`` and ``Level``."""
    return json.dumps(asdict(report), indent=2) + "\n"


def to_markdown(report: Report) -> str:
    """The table, then what it was measured on and with."""
    lines = [to_table(report), "", *circumstances(report)]
    lines += [f"- **problem**: {problem}" for problem in report.problems()]
    return "\n".join(lines) + "\n"


class Measurement(Protocol):
    """What every report says of how it came about."""

    @property
    def created(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def commit(self) -> str: ...
    @property
    def hardware(self) -> Mapping[str, str | int | float]: ...
    @property
    def versions(self) -> Mapping[str, str]: ...
    @property
    def model(self) -> str: ...
    @property
    def load(self) -> Mapping[str, str | int | float]: ...


def circumstances(report: Measurement, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """A line for each thing that a report was measured on and with."""
    context = {
        "command": f"`{report.command}`",
        "commit": report.commit,
        "measured": report.created,
        "hardware": joined(report.hardware),
        "versions": joined(report.versions),
        "model": report.model,
        "load": joined(report.load),
        **(more or {}),
    }
    return (f"- {name}: {value}" for name, value in context.items())


def to_table(report: Report) -> str:
    """One row per number of clients and target; expected ratios stand in brackets."""
    head = ["| " + " | ".join(COLUMNS) + " |", "|--:|:--" + "|--:" * (len(COLUMNS) - 2) + "|"]
    return "\n".join(head + ["| " + " | ".join(cells) + " |" for cells in rows(report)])


def rows(report: Report) -> Iterator[list[str]]:
    """The table's cells, by number of clients, then by target."""
    by_clients = {name: {lv.clients: lv for lv in lvs} for name, lvs in report.levels.items()}
    for clients in dict.fromkeys(lv.clients for lvs in report.levels.values() for lv in lvs):
        for name, levels in by_clients.items():
            if clients in levels:
                ours = name == THROUGH_TRITON
                speedup = ratio(levels[clients], by_clients.get(BASELINE, {}).get(clients))
                share = ratio(levels[clients], by_clients.get(IN_PROCESS, {}).get(clients))
                yield [
                    *figures(name, levels[clients]),
                    speedup_cell(speedup, clients) if ours else "",
                    share_cell(share) if ours else "",
                ]


def figures(name: str, level: Level) -> list[str]:
    """The cells that are the level's own."""
    seconds = [f"{value:.2f}" for value in (level.p50_s, level.p90_s, level.p99_s)]
    rate = f"{level.useful_tokens_per_s:,.0f}"
    return [str(level.clients), name, rate, *seconds, str(level.num_requests)]


def ratio(level: Level, other: Level | None) -> float | None:
    """How many times the other's useful tokens/s, where the other was measured."""
    if other is None or not other.useful_tokens_per_s:
        return None
    return level.useful_tokens_per_s / other.useful_tokens_per_s


def speedup_cell(speedup: float | None, clients: int) -> str:
    if speedup is None:
        return ""
    expected = EXPECTED_SPEEDUP.get(clients)
    return f"{speedup:.1f}" + (f" (≥ {expected:g})" if expected else "")


def share_cell(share: float | None) -> str:
    return "" if share is None else f"{share:.0%} (≥ {EXPECTED_OF_IN_PROCESS:.0%})"


def joined(values: Mapping[str, str | int | float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())

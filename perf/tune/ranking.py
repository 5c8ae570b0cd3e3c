"""What was tried, the best first, and as a table such as Model Analyzer's. Knows no optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perf.report.schema import Measurement, Percentiles
from perf.tune.goal import Goal, throughput
from perf.tune.settings.keys import settings_text, short, value_text
from perf.tune.trials import Outcome

Cells = list[str]
_MARKS = {"stopped early": " (stopped early)", "measured": "", "failed": ""}


def ranked(outcomes: Iterable[Outcome], goal: Goal) -> list[Outcome]:
    """Those with figures: all that were measured whole before those that were stopped early."""
    kept = [each for each in outcomes if each.state != "failed"]
    return sorted(kept, key=lambda each: (each.state != "measured", goal.rank(each.measurement)))


def winner(outcomes: Iterable[Outcome], goal: Goal) -> Outcome | None:
    """The best that was measured whole, whether it meets the bounds or is only nearest to them."""
    best = next(iter(ranked(outcomes, goal)), None)
    return best if best is not None and best.state == "measured" else None


def table(outcomes: Sequence[Outcome], goal: Goal) -> list[str]:
    """Lines: one for each trial with figures, then why the others have none."""
    order = ranked(outcomes, goal)
    if not order:
        return failures(outcomes)
    keys = [*order[0].settings]
    tokens = any(each.measurement.output_tokens_per_s is not None for each in order)
    columns: list[tuple[str, Callable[[Outcome], str]]] = [
        *((short(key), _setting(key)) for key in keys),
        ("tokens/s" if tokens else "requests/s", _throughput),
        ("p99 ms", lambda each: _p99(each.measurement.latency)),
        ("TTFT p99 ms", lambda each: _p99(each.measurement.time_to_first_token)),
        ("memory GiB", _machine("memory_gib")),
        ("GPU GiB", _machine("gpu_memory_gib")),
        ("bounds", lambda each: "met" if goal.is_met(each.measurement) else _broken(each, goal)),
    ]
    rows = [["rank", "trial", *(name for name, _ in columns)]]
    for place, each in enumerate(order, 1):
        trial = f"{each.number}{' current' if each.number == 0 else ''}{_MARKS[each.state]}"
        rows.append([str(place), trial, *(cell(each) for _, cell in columns)])
    return [*_aligned(_without_empty(rows)), *failures(outcomes)]


def failures(outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each trial without figures."""
    failed = [each for each in outcomes if each.state == "failed"]
    return [
        f"trial {each.number} failed: {settings_text(each.settings)}: "
        f"{each.measurement.first_error}"
        for each in failed
    ]


def _setting(key: str) -> Callable[[Outcome], str]:
    return lambda each: value_text(each.settings[key])


def _machine(name: str) -> Callable[[Outcome], str]:
    def cell(each: Outcome) -> str:
        found = each.measurement.machine.get(name)
        return "" if found is None else f"{found:.2f}"

    return cell


def _throughput(each: Outcome) -> str:
    return f"{throughput(each.measurement):,.1f}"


def _p99(times: Percentiles | None) -> str:
    return "" if times is None else f"{times.p99_ms:,.0f}"


def _broken(each: Outcome, goal: Goal) -> str:
    measurement: Measurement = each.measurement
    excess = {name: by for name, by in goal.excess(measurement).items() if by > 0}
    names = {"p99": "p99", "ttft": "TTFT", "throughput": "throughput"}
    parts = [f"{names[name]} by {by:.0%}" for name, by in excess.items() if name in names]
    if "errors" in excess:
        parts.append(f"{measurement.num_errors} errors")
    return f"missed: {', '.join(parts)}"


def _without_empty(rows: list[Cells]) -> list[Cells]:
    """Without columns that no trial has."""
    kept = [place for place in range(len(rows[0])) if any(row[place] for row in rows[1:])]
    return [[row[place] for place in kept] for row in rows]


def _aligned(rows: list[Cells]) -> list[str]:
    """Numbers to the right, the first and the last columns to the left."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    left = {1, len(widths) - 1}
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]

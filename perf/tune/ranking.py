"""What was tried as a table such as Model Analyzer's, the best first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perf.report.schema import Percentiles
from perf.tune.goal import Goal, throughput
from perf.tune.settings.keys import settings_text, short, value_text
from perf.tune.trials import Outcome, ranked


def table(outcomes: Sequence[Outcome], goal: Goal) -> list[str]:
    """Lines: one for each trial with figures, then why the others have none."""
    order = ranked(outcomes, goal)
    if not order:
        return failures(outcomes)
    tokens = any(each.measurement.output_tokens_per_s is not None for each in order)
    keys = [*order[0].settings]
    heads = [
        *("rank", "trial", *map(short, keys)),
        *("tokens/s" if tokens else "requests/s", "p99 ms", "TTFT p99 ms"),
        *("memory GiB", "GPU GiB", "bounds"),
    ]
    rows = [_row(place, each, keys, goal) for place, each in enumerate(order, 1)]
    columns = [column for column in zip(heads, *rows, strict=True) if any(column[1:])]
    return [*_aligned(columns), *failures(outcomes)]


def failures(outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each trial without figures."""
    return [
        f"trial {each.number} failed: {settings_text(each.settings)}: "
        f"{each.measurement.first_error}"
        for each in outcomes
        if each.state == "failed"
    ]


def _row(place: int, each: Outcome, keys: Sequence[str], goal: Goal) -> list[str]:
    found = each.measurement
    early = " (stopped early)" if each.state == "stopped early" else ""
    gib = (found.machine.get(name) for name in ("memory_gib", "gpu_memory_gib"))
    return [
        str(place),
        f"{each.number}{' current' if each.number == 0 else ''}{early}",
        *(value_text(each.settings[key]) for key in keys),
        f"{throughput(found):,.1f}",
        *(_p99(times) for times in (found.latency, found.time_to_first_token)),
        *("" if size is None else f"{size:.2f}" for size in gib),
        "met" if goal.is_met(found) else _broken(each, goal),
    ]


def _p99(times: Percentiles | None) -> str:
    return "" if times is None else f"{times.p99_ms:,.0f}"


def _broken(each: Outcome, goal: Goal) -> str:
    excess = {name: by for name, by in goal.excess(each.measurement).items() if by > 0}
    errors = [f"{each.measurement.num_errors} errors"] * (excess.pop("errors", None) is not None)
    names = {"ttft": "TTFT"}
    parts = [f"{names.get(name, name)} by {by:.0%}" for name, by in excess.items()]
    return f"missed: {', '.join([*parts, *errors])}"


def _aligned(columns: Sequence[Sequence[str]]) -> list[str]:
    """Lines: numbers to the right, the first and the last columns of text to the left."""
    padded = []
    for place, cells in enumerate(columns):
        width = max(map(len, cells))
        pad = str.ljust if place in (1, len(columns) - 1) else str.rjust
        padded.append([pad(cell, width) for cell in (cells[0], "-" * width, *cells[1:])])
    return ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]

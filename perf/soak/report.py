"""The result of a soak, as JSON for programs and Markdown for readers; measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from perf.soak.run import Tally
from perf.soak.server import Sample

MOST_GROWTH = 0.05
_LEAST_MIB = 1.0  # of growth: a page or two more is none


@dataclass(frozen=True)
class SoakReport:
    """One soak. The last sample of the warm-up and the last of all are of an idle server; ``busy``
    are the gauges that did not go back to 0.
    """

    created: str  # ISO 8601, UTC
    command: str
    commit: str
    hardware: Mapping[str, str | int | float]
    versions: Mapping[str, str]
    seed: int
    clients: int
    tally: Tally
    num_cut_short: int
    warm_up: list[Sample]
    samples: list[Sample]
    busy: Mapping[str, float]
    died: bool
    exit_code: int

    def problems(self) -> list[str]:
        """One line for all that is not as it must be."""
        found = [f"request {p.number}: {p.what}" for p in self.tally.problems]
        found += [f"{name} is {value:g} in the end" for name, value in self.busy.items()]
        if self.died:
            found.append("the server died")
        if self.exit_code:
            found.append(f"the server did not stop in time (exit code {self.exit_code})")
        for name, (_, peak, after) in self.growth().items():
            if after > peak * (1 + MOST_GROWTH) and after - peak > _LEAST_MIB:
                found.append(f"{name}: {peak:g} MiB in the warm-up, {after:g} MiB at the end")
        first, last = self.warm_up[-1], self.samples[-1]
        for name, num_threads in last.num_threads.items():
            if num_threads > first.num_threads.get(name, 0):
                before = first.num_threads.get(name, 0)
                found.append(f"{name}: {before} threads after the warm-up, {num_threads} now")
        return found

    def growth(self) -> dict[str, tuple[float, float, float]]:
        """MiB by process, and of shared memory: idle after the warm-up, the most until then, and
        idle at the end.
        """
        told = [_memory(sample) for sample in (*self.warm_up, self.samples[-1])]
        return {
            name: (told[-2].get(name, 0.0), max(t.get(name, 0.0) for t in told[:-1]), after)
            for name, after in told[-1].items()
        }


def _memory(sample: Sample) -> dict[str, float]:
    return {**sample.rss_mib, "/dev/shm": sample.shared_memory_mib}


def to_json(report: SoakReport) -> str:
    """The whole report; keys are the field names."""
    return json.dumps(asdict(report), indent=1, ensure_ascii=False, default=str) + "\n"


def to_markdown(report: SoakReport) -> str:
    """What was sent, what came of it, and what the server held."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: SoakReport) -> Iterator[str]:
    tally = report.tally
    yield "# Soak: random requests against a real server"
    yield ""
    yield f"{report.created}, commit {report.commit}: `{report.command}`"
    yield ""
    yield (
        f"{tally.num_answered} requests from {report.clients} clients, seed {report.seed}: "
        f"**{tally.num_problems} wrong, {tally.num_hung} hung**."
    )
    if report.num_cut_short:
        yield (
            f"Of {report.num_cut_short} greedy answers only the beginning was compared: "
            "what follows hangs on rounding."
        )
    yield ""
    yield from _table(("kind", "requests"), sorted(tally.kinds.items()))
    yield from _table(
        ("kind and status (0: its caller left)", "requests"), sorted(tally.statuses.items())
    )
    yield from _table(("model and way", "requests"), sorted(tally.ways.items()))
    latencies = [
        (
            way,
            len(seconds),
            *(f"{_percentile(seconds, p):.3f}" for p in (50, 90, 99)),
            f"{max(seconds):.3f}",
        )
        for way, seconds in sorted(tally.seconds.items())
    ]
    yield from _table(
        ("valid, by way", "requests", "p50 s", "p90 s", "p99 s", "longest s"), latencies
    )
    growth = [
        (name, idle, peak, after, f"{(after / peak - 1) * 100 if peak else 0:+.1f} %")
        for name, (idle, peak, after) in report.growth().items()
    ]
    head = ("MiB", "idle after warm-up", "most until then", "idle at the end", "of the most")
    yield from _table(head, growth)
    yield from _table(*_series([*report.warm_up, *report.samples]))
    problems = report.problems()
    yield f"## {len(problems) or 'No'} problems"
    yield ""
    yield from (f"- {problem}" for problem in problems)
    details = {**report.hardware, **report.versions}
    yield ", ".join(f"{name} {value}" for name, value in details.items())


def _series(samples: list[Sample]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    names = list(samples[-1].rss_mib)
    head = ("requests", "s", *(f"{name} MiB" for name in names), "/dev/shm MiB", "threads")
    rows: list[tuple[object, ...]] = [
        (
            sample.num_answered,
            sample.seconds,
            *(sample.rss_mib.get(name, "") for name in names),
            sample.shared_memory_mib,
            sum(sample.num_threads.values()),
        )
        for sample in samples
    ]
    return head, rows


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""


def _percentile(values: list[float], percent: int) -> float:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]

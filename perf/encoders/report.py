"""What embeddings cost, as JSON for programs and Markdown for readers; measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from perf.circumstances import circumstances
from perf.encoders.rounds import Case, EncoderLevel, Measured
from perf.encoders.targets import APP, BFLOAT16, IN_PROCESS, MLSERVER, OURS
from perf.serving_costs.report import spread

SCHEMA_VERSION = 1
NAMES = {
    OURS: "ours, float32",
    BFLOAT16: "ours, bfloat16",
    APP: "(a) FastAPI + pipeline",
    MLSERVER: "(b) MLServer",
    IN_PROCESS: "(c) ours, no server",
}
LOADS = {"texts-16": "16", "texts-128": "128", "texts": "8-256"}
COLUMNS = ("tokens", "clients", "served by", "texts/s", "p50 ms", "p99 ms")
AGAINST = {APP: "times (a)", MLSERVER: "times (b)", IN_PROCESS: "of (c)"}
EXPECTED = {  # (target, other, clients) -> at least so many times the other's texts/s
    (OURS, APP, 1): 1.6,
    (OURS, APP, 32): 2.5,
    (OURS, MLSERVER, 32): 4.0,
    (OURS, IN_PROCESS, 32): 0.85,
    (BFLOAT16, APP, 32): 4.0,
}


@dataclass(frozen=True)
class EncoderReport:
    """One measurement: what, where, how, and all levels in the order measured."""

    created: str  # ISO 8601, UTC
    command: str
    commit: str
    hardware: Mapping[str, str | int | float]
    versions: Mapping[str, str]
    model: str
    load: Mapping[str, str | int | float]
    skipped: Mapping[str, str]  # target -> why it was not measured
    measured: Measured
    schema_version: int = field(default=SCHEMA_VERSION)

    def problems(self) -> list[str]:
        """One line for each level in which an answer failed or was wrong."""
        return [
            f"{NAMES[level.target]}, {level.load}, {level.level.clients} clients: "
            f"{level.level.num_problems} bad answers, the first: {level.level.first_problem}"
            for level in [*self.measured.rounds, *self.measured.documents]
            if level.level.num_problems
        ]


def to_json(report: EncoderReport) -> str:
    """The whole report; keys are the field names, ratios are left to the reader."""
    return json.dumps(asdict(report), indent=2) + "\n"


def to_markdown(report: EncoderReport) -> str:
    """The tables, then what they were measured on and with."""
    idle = {"all loaded, no requests": f"{report.measured.idle_cores:.2f} cores"}
    lines = [
        *table(report.measured.rounds),
        "",
        *document_table(report.measured.documents),
        *circumstances(report, idle),
        *(f"- {NAMES[target]} was left out: {why}" for target, why in report.skipped.items()),
        *(f"- **problem**: {problem}" for problem in report.problems()),
    ]
    return "\n".join(lines) + "\n"


def table(levels: Sequence[EncoderLevel]) -> Iterator[str]:
    """A row for each load, number of clients and service: medians over the rounds, in brackets the
    least and the most; expected ratios follow them.
    """
    yield row([*COLUMNS, *AGAINST.values()])
    yield "|--:|--:|:--|" + "--:|" * (len(COLUMNS) - 3 + len(AGAINST))
    for case in dict.fromkeys(case_of(level) for level in levels):
        for target, name in NAMES.items():
            found = [lv for lv in levels if case_of(lv) == case and lv.target == target]
            if found:
                ratios = [ratio_cell(levels, case, target, other) for other in AGAINST]
                yield row([LOADS[case.load], str(case.clients), name, *figures(found), *ratios])


def document_table(levels: Sequence[EncoderLevel]) -> Iterator[str]:
    """Short texts alone and beside long documents."""
    if not levels:
        return
    yield row(["16-token texts", "documents/s beside", *COLUMNS[3:]])
    yield "|:--|--:|--:|--:|--:|"
    for beside in (False, True):
        found = [lv for lv in levels if (lv.documents_per_s is not None) == beside]
        rates = [lv.documents_per_s for lv in found if lv.documents_per_s is not None]
        name = "8 clients beside 2 with documents" if beside else "8 clients alone"
        yield row([name, f"{median(rates):.1f}" if rates else "", *figures(found)])
    yield ""


def figures(levels: Sequence[EncoderLevel]) -> list[str]:
    """Texts per second and latencies, one level per round."""
    p50, p99 = (median(getattr(lv.level, name) for lv in levels) for name in ("p50_s", "p99_s"))
    rate = spread([lv.texts_per_s for lv in levels], ",.1f")
    return [rate, f"{p50 * 1000:.1f}", f"{p99 * 1000:.1f}"]


def ratio_cell(levels: Sequence[EncoderLevel], case: Case, target: str, other: str) -> str:
    """How many times the other's texts/s, for services of ours that are compared with it."""
    if target not in (OURS, BFLOAT16) or (target, other) == (BFLOAT16, IN_PROCESS):
        return ""
    ratios = rounds_ratios(levels, case, target, other)
    if not ratios:
        return ""
    expected = EXPECTED.get((target, other, case.clients))
    return spread(ratios, ".2f") + (f" [≥ {expected:g}]" if expected else "")


def rounds_ratios(
    levels: Sequence[EncoderLevel], case: Case, target: str, other: str
) -> list[float]:
    """For each round, the target's texts/s over the other's."""
    rates = {(lv.number, lv.target): lv.texts_per_s for lv in levels if case_of(lv) == case}
    pairs = (
        (rates.get((number, target)), rates.get((number, other)))
        for number in dict.fromkeys(number for number, _ in rates)
    )
    return [rate / divisor for rate, divisor in pairs if rate and divisor]


def case_of(level: EncoderLevel) -> Case:
    """What a level was a level of."""
    return Case(level.load, level.level.clients)


def row(cells: Sequence[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"

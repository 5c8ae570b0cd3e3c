"""What serving costs, as JSON for programs and Markdown for readers; measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from perf.circumstances import circumstances
from perf.serving_costs.levels import GRPC, SSE, CostLevel, Costs
from perf.serving_costs.repository import DIRECT, FRONT, TWIN, UNCOUNTED

SCHEMA_VERSION = 1
WAYS = {
    DIRECT: "`/infer`, engine served directly",
    TWIN: "the same, loaded once more",
    UNCOUNTED: "the same without metrics",
    FRONT: "`/infer` through the front",
    SSE: "`/generate_stream` (SSE)",
    GRPC: "gRPC stream",
}
"""Way -> its name in the table."""


@dataclass(frozen=True)
class Question:
    """A cost: what is left of ``against``'s throughput in ``way``, and what is asked of it."""

    text: str
    way: str
    against: str
    asked: float | None = None


QUESTIONS = (
    Question("forwarding", FRONT, DIRECT, 0.95),
    Question("metrics", DIRECT, UNCOUNTED, 0.99),
    Question("streaming over SSE", SSE, FRONT),
    Question("streaming over gRPC", GRPC, FRONT),
    Question("nothing (how much two equal ones differ)", TWIN, DIRECT),
)


@dataclass(frozen=True)
class CostReport:
    """One measurement: what, where, how, and all levels in the order measured."""

    created: str  # ISO 8601, UTC
    command: str
    commit: str
    hardware: Mapping[str, str | int | float]
    versions: Mapping[str, str]
    model: str
    load: Mapping[str, str | int | float]
    costs: Costs
    schema_version: int = field(default=SCHEMA_VERSION)

    def problems(self) -> list[str]:
        """One line for each level in which an answer failed or had the wrong length."""
        return [
            f"{WAYS[cost.way]}, {cost.level.clients} clients: {cost.level.num_problems} bad "
            f"answers, the first: {cost.level.first_problem}"
            for cost in [*self.costs.rounds, *self.costs.waiting]
            if cost.level.num_problems
        ]


def to_json(report: CostReport) -> str:
    """The whole report; keys are the field names, ratios are left to the reader."""
    return json.dumps(asdict(report), indent=2) + "\n"


def to_markdown(report: CostReport) -> str:
    """The tables, then what they were measured on and with."""
    costs = report.costs
    idle = {"all engines loaded, no requests": f"{costs.idle_cores:.2f} cores"}
    parts = [
        *throughput_table(costs.rounds),
        "",
        *cost_table(costs.rounds),
        "",
        *waiting_table(costs.waiting),
        "",
        *circumstances(report, idle),
        *(f"- **problem**: {problem}" for problem in report.problems()),
    ]
    return "\n".join(parts) + "\n"


def throughput_table(rounds: Sequence[CostLevel]) -> Iterator[str]:
    """A row for each way: medians over the rounds, in brackets the least and the most."""
    clients = rounds[0].level.clients if rounds else 0
    yield f"| {clients} clients | useful tokens/s | p50 s | p99 s | load generator, cores |"
    yield "|:--|--:|--:|--:|--:|"
    for way, name in WAYS.items():
        levels = [cost for cost in rounds if cost.way == way]
        if levels:
            rate = spread([cost.level.useful_tokens_per_s for cost in levels], ",.0f")
            p50, p99 = (median(getattr(c.level, n) for c in levels) for n in ("p50_s", "p99_s"))
            cores = median(cost.client_cores for cost in levels)
            yield f"| {name} | {rate} | {p50:.2f} | {p99:.2f} | {cores:.2f} |"


def cost_table(rounds: Sequence[CostLevel]) -> Iterator[str]:
    """A row for each question: the ratio within a round, median over the rounds."""
    yield "| cost of | useful tokens/s of | against | ratio in a round | asked |"
    yield "|:--|:--|:--|--:|--:|"
    for question in QUESTIONS:
        shares = ratios(rounds, question)
        if shares:
            asked = f"≥ {question.asked:.0%}" if question.asked else ""
            names = f"{WAYS[question.way]} | {WAYS[question.against]}"
            yield f"| {question.text} | {names} | {spread(shares, '.1%')} | {asked} |"


def ratios(rounds: Sequence[CostLevel], question: Question) -> list[float]:
    """For each round, the way's throughput over that of the one it is compared with."""
    rates = {(cost.number, cost.way): cost.level.useful_tokens_per_s for cost in rounds}
    pairs = (
        (rates.get((number, question.way)), rates.get((number, question.against)))
        for number in dict.fromkeys(cost.number for cost in rounds)
    )
    return [rate / other for rate, other in pairs if rate and other]


def waiting_table(levels: Sequence[CostLevel]) -> Iterator[str]:
    """A row for each number of streaming clients, without and with long prompts."""
    yield (
        "| streaming clients (SSE) | long prompts/s beside | first token p50 / p99 ms "
        "| between chunks p50 / p99 ms | tokens a chunk | useful tokens/s | answers |"
    )
    yield "|--:|--:|--:|--:|--:|--:|--:|"
    for cost in levels:
        found = cost.streaming
        if found:
            beside = "" if cost.long_prompts_per_s is None else f"{cost.long_prompts_per_s:.1f}"
            cells = (
                f"{cost.level.clients} | {beside}",
                f"{found.first_p50_s * 1000:.0f} / {found.first_p99_s * 1000:.0f}",
                f"{found.between_p50_s * 1000:.0f} / {found.between_p99_s * 1000:.0f}",
                f"{found.tokens_per_chunk:.2f} | {cost.level.useful_tokens_per_s:,.0f}",
                f"{found.num_answers}",
            )
            yield "| " + " | ".join(cells) + " |"


def spread(values: Sequence[float], form: str) -> str:
    """The median, and in brackets the least and the most."""
    least, middle, most = min(values), median(values), max(values)
    return f"{middle:{form}} ({least:{form}} to {most:{form}})"

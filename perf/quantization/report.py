"""Memory and tokens/s of quantized weights, as JSON and Markdown; measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from perf.circumstances import circumstances

BASELINE = "bfloat16"


@dataclass(frozen=True)
class Run:
    """One variant at one number of clients, once."""

    variant: str
    clients: int
    useful_tokens_per_s: float
    num_problems: int


@dataclass(frozen=True)
class QuantizationReport:
    """One measurement; ``memory_gib`` is what each variant's process holds after its warm-up:
    weights, libraries, and the part of the cache for keys and values that was used.
    """

    created: str  # ISO 8601, UTC
    command: str
    commit: str
    hardware: Mapping[str, str | int | float]
    versions: Mapping[str, str]
    model: str
    load: Mapping[str, str | int | float]
    memory_gib: Mapping[str, float]
    runs: Sequence[Run]
    schema_version: int = 1

    def tokens_per_s(self, variant: str, clients: int) -> float:
        """The median of the rounds."""
        return median(
            run.useful_tokens_per_s
            for run in self.runs
            if (run.variant, run.clients) == (variant, clients)
        )

    def problems(self) -> list[str]:
        """One line for each run with an answer that failed."""
        return [
            f"{run.variant}, {run.clients} clients: {run.num_problems} answers failed"
            for run in self.runs
            if run.num_problems
        ]


def to_json(report: QuantizationReport) -> str:
    """Everything that was measured."""
    return json.dumps(asdict(report), indent=1) + "\n"


def to_markdown(report: QuantizationReport) -> str:
    """A table with a row for each variant, and each figure's share of bfloat16's."""
    clients = sorted({run.clients for run in report.runs})
    return "\n".join(
        [
            "# Quantized weights beside whole ones",
            "",
            *circumstances(report),
            "",
            f"Medians of the rounds; in brackets the share of {BASELINE}'s.",
            "",
            "| weights | process, GiB | " + " | ".join(f"tokens/s at {n}" for n in clients) + " |",
            "|---|--:|" + "--:|" * len(clients),
            *_rows(report, clients),
            *(f"\nProblem: {line}" for line in report.problems()),
            "",
        ]
    )


def _rows(report: QuantizationReport, clients: Sequence[int]) -> Iterator[str]:
    whole = report.memory_gib[BASELINE]
    for variant, gib in report.memory_gib.items():
        speeds = [
            _beside(report.tokens_per_s(variant, n), report.tokens_per_s(BASELINE, n), ".0f")
            for n in clients
        ]
        yield f"| {variant} | {_beside(gib, whole, '.2f')} | {' | '.join(speeds)} |"


def _beside(value: float, baseline: float, form: str) -> str:
    share = f"{value / baseline:.2f}" if baseline else "-"
    return f"{value:{form}} ({share})"

"""The tables of a comparison, in Markdown; measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import median

from perf.lab.baselines import targets
from perf.lab.baselines.plan import is_stream, variant_of
from perf.lab.baselines.targets import BFLOAT16, DTYPES, FLOAT16, FLOAT32, TARGETS, Variant
from perf.report.markdown import joined, spread, table
from perf.report.schema import Measurement, Percentiles, Run
from perf.report.written import write_text

ASKED: Mapping[tuple[str, Variant], Mapping[int, float]] = {
    (FLOAT32, Variant(targets.VLLM, FLOAT32)): {1: 1.1, 8: 1.1, 32: 1.1, 64: 1.0, 256: 1.0},
    (BFLOAT16, Variant(targets.VLLM, BFLOAT16)): dict.fromkeys((1, 8, 32, 64, 256), 0.9),
    (FLOAT32, Variant(targets.TUTORIAL, FLOAT16)): {1: 2.5, 8: 6.0, 32: 9.0, 64: 9.0},
    (FLOAT32, Variant(targets.IN_PROCESS, FLOAT32)): dict.fromkeys((1, 8, 32, 64), 0.95),
}

MARKDOWN_FILE = "baselines.md"
FIGURES = (
    *("clients", "served by", "useful tokens/s", "of the limit", "p50 s", "p90 s", "p99 s"),
    *("requests", "server, cores", "memory, GiB"),
)
STREAMS = (
    *("clients", "served by", "first token p50 / p99 ms", "between chunks p50 / p99 ms"),
    *("tokens a chunk", "useful tokens/s"),
)
_ALIGN = "><"  # the second column is text


def to_markdown(run: Run, measurements: Sequence[Measurement]) -> str:
    """The ratios, the figures, the streams, and how it all came about."""
    whole = [each for each in measurements if not is_stream(each.load)]
    streamed = [each for each in measurements if is_stream(each.load)]
    lines = []
    for rows in (ratio_table(whole), figure_table(whole), stream_table(streamed)):
        lines += [*rows, ""] if rows else []
    return "\n".join([*lines, *circumstances(run), *problems(measurements)]) + "\n"


def write_markdown(folder: Path, run: Run, measurements: Sequence[Measurement]) -> str:
    """Writes the tables beside the run, whole or not at all; returns them. Raises OSError."""
    text = to_markdown(run, measurements)
    write_text(folder / MARKDOWN_FILE, text)
    return text


def ratio_table(measurements: Sequence[Measurement]) -> list[str]:
    """A row for each target that ours is compared with, a column for each number of clients."""
    clients = clients_of(measurements)
    heads = ["ours, useful tokens/s", "against", *(f"{count} clients" for count in clients)]
    rows = [
        [ours.dtype, other.label]
        + [ratio_cell(ratio(measurements, ours, other, count)) for count in clients]
        for ours, other in pairs(measurements)
    ]
    return table(heads, rows, "<<") if rows else []


def ratio_cell(found: Ratio | None) -> str:
    """The median, in round brackets the least and the most, in square brackets what is asked."""
    if found is None:
        return ""
    asked = "" if found.asked is None else f" [≥ {found.asked:g}]"
    missed = " missed" if found.is_missed else ""
    doubtful = " (busy machine)" if found.is_doubtful else ""
    return f"{spread(found.values, '.2f')}{asked}{missed}{doubtful}"


def figure_table(measurements: Sequence[Measurement]) -> list[str]:
    """A row for each number of clients and target: medians over the rounds."""
    rows = [
        [
            *(clients, variant.label, rate_cell(found)),
            middle([each.roofline_share for each in found], ".0%"),
            *(middle(times(found, "latency", name), ".2f", 1e-3) for name in ("p50", "p90", "p99")),
            min(each.num_requests for each in found),
            middle([each.machine.get("server_cpu_cores") for each in found], ".1f"),
            middle([each.machine.get("memory_gib") for each in found], ".1f"),
        ]
        for variant, clients, found in groups(measurements)
    ]
    return table(FIGURES, rows, _ALIGN) if rows else []


def stream_table(measurements: Sequence[Measurement]) -> list[str]:
    """What readers of streams wait for."""
    rows = []
    for variant, clients, found in groups(measurements):
        waits = [
            " / ".join(filter(None, (middle(times(found, kind, p), ".0f") for p in ("p50", "p99"))))
            for kind in ("time_to_first_token", "inter_token_latency")
        ]
        tokens = middle([each.server.get("tokens_per_chunk", 0.0) for each in found], ".2f")
        rows.append([clients, variant.label, *waits, tokens, rate_cell(found)])
    return table(STREAMS, rows, _ALIGN) if rows else []


def circumstances(run: Run) -> Iterator[str]:
    """A line for each thing that a run was measured on and with, and each note."""
    yield f"- command: `{run.command}`"
    yield f"- commit: {run.commit}"
    yield f"- begun: {run.created}"
    yield f"- hardware: {joined(run.hardware)}"
    yield f"- versions: {joined(run.versions)}"
    yield f"- load: {joined(run.scenario)}"
    if run.roofline:
        yield f"- limits measured: {joined({k: round(v, 1) for k, v in run.roofline.items()})}"
    yield from (f"- {note}" for note in run.notes)


def problems(measurements: Sequence[Measurement]) -> Iterator[str]:
    """What makes a figure doubtful, a line for each level."""
    for each in measurements:
        level = f"{variant_of(each.load).label}, {each.load.concurrency} clients"
        level += f", round {each.repeat + 1}{', streams' * is_stream(each.load)}"
        if each.num_errors:
            bad = f"{each.num_errors} bad answers, the first: {each.first_error}"
            yield f"- **problem**: {level}: {bad}"
        if not each.stable:
            yield f"- {level}: {each.num_requests} requests were counted in the time that it had"
        if is_disturbed(each):
            others = each.machine["other_cpu_cores"]
            yield f"- {level}: other processes took {others:.1f} cores meanwhile"


def groups(
    measurements: Sequence[Measurement],
) -> Iterator[tuple[Variant, int, list[Measurement]]]:
    """By number of clients, then by target: what was measured in all rounds."""
    variants = {variant_of(each.load) for each in measurements}
    order = [target.name for target in TARGETS]
    ordered = sorted(variants, key=lambda v: (order.index(v.name), v.dtype != "float32"))
    for clients in clients_of(measurements):
        for variant in ordered:
            found = [
                each
                for each in measurements
                if each.load.concurrency == clients and variant_of(each.load) == variant
            ]
            if found:
                yield variant, clients, found


def clients_of(measurements: Sequence[Measurement]) -> list[int]:
    """The numbers of clients, ascending."""
    return sorted({each.load.concurrency for each in measurements if each.load.concurrency})


def rate_cell(found: Sequence[Measurement]) -> str:
    """Useful tokens/s: the median, and in brackets the least and the most."""
    return spread([each.output_tokens_per_s or 0.0 for each in found], ",.0f")


def times(found: Sequence[Measurement], kind: str, name: str) -> list[float | None]:
    """A percentile of the waiting times ``kind``, in milliseconds."""
    each_kind: list[Percentiles | None] = [getattr(each, kind) for each in found]
    return [attrgetter(f"{name}_ms")(each) if each else None for each in each_kind]


def middle(values: Sequence[float | None], form: str, scale: float = 1.0) -> str:
    """The median over the rounds of those that were measured."""
    known = [value * scale for value in values if value is not None]
    return f"{median(known):{form}}" if known else ""


"""Ours in a number format against another -> clients -> at least so many times its tokens/s."""


BUSY_CORES = 0.3


@dataclass(frozen=True)
class Ratio:
    """Ours over another's useful tokens/s, of one number of clients, in each round."""

    values: Sequence[float]
    asked: float | None  # of the median
    is_doubtful: bool = False  # whether the machine did something else in one of the levels

    @property
    def is_missed(self) -> bool:
        """Whether less than what is asked was measured."""
        return self.asked is not None and round(median(self.values), 2) < self.asked


def pairs(measurements: Sequence[Measurement]) -> list[tuple[Variant, Variant]]:
    """Ours and each other one, in the same number format where the other has it."""
    measured = {variant_of(each.load) for each in measurements}
    found = []
    for dtype in DTYPES:
        ours = Variant(targets.OURS, dtype)
        for target in TARGETS:
            only = dtype if dtype in target.dtypes else target.dtypes[0]
            other = Variant(target.name, only)
            if other != ours and {ours, other} <= measured:
                found.append((ours, other))
    return found


def ratio(
    measurements: Sequence[Measurement], ours: Variant, other: Variant, clients: int
) -> Ratio | None:
    """Over the rounds in which both were measured; None where there is none."""
    levels = {
        (variant_of(each.load), each.repeat): each
        for each in measurements
        if each.load.concurrency == clients and not is_stream(each.load)
    }
    both = [
        (level, levels[other, number])
        for (variant, number), level in levels.items()
        if variant == ours and (other, number) in levels
    ]
    rates = [[level.output_tokens_per_s or 0.0 for level in pair] for pair in both]
    values = [one / another for one, another in rates if one and another]
    if not values:
        return None
    asked = ASKED.get((ours.dtype, other), {}).get(clients)
    return Ratio(values, asked, any(is_disturbed(level) for pair in both for level in pair))


def is_disturbed(measurement: Measurement) -> bool:
    """Whether other processes took a good part of the cores meanwhile."""
    return measurement.machine.get("other_cpu_cores", 0.0) > BUSY_CORES

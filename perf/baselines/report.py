"""The tables of a comparison, in Markdown; measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from perf.baselines.plan import is_stream, variant_of
from perf.baselines.ratios import Ratio, is_disturbed, pairs, ratio
from perf.baselines.targets import TARGETS, Variant
from perf.circumstances import joined
from perf.report.schema import Measurement, Percentiles, Run
from perf.report.written import write_text

MARKDOWN_FILE = "baselines.md"
FIGURES = (
    "clients",
    "served by",
    "useful tokens/s",
    "of the limit",
    "p50 s",
    "p90 s",
    "p99 s",
    "requests",
    "server, cores",
    "memory, GiB",
)
STREAMS = (
    "clients",
    "served by",
    "first token p50 / p99 ms",
    "between chunks p50 / p99 ms",
    "tokens a chunk",
    "useful tokens/s",
)


def to_markdown(run: Run, measurements: Sequence[Measurement]) -> str:
    """The ratios, the figures, the streams, and how it all came about."""
    whole = [each for each in measurements if not is_stream(each.load)]
    streamed = [each for each in measurements if is_stream(each.load)]
    lines = [
        *ratio_table(whole),
        *figure_table(whole),
        *stream_table(streamed),
        *circumstances(run),
        *problems(measurements),
    ]
    return "\n".join(lines) + "\n"


def write_markdown(folder: Path, run: Run, measurements: Sequence[Measurement]) -> str:
    """Writes the tables beside the run, whole or not at all; returns them. Raises OSError."""
    text = to_markdown(run, measurements)
    write_text(folder / MARKDOWN_FILE, text)
    return text


def ratio_table(measurements: Sequence[Measurement]) -> Iterator[str]:
    """A row for each target that ours is compared with, a column for each number of clients."""
    clients = clients_of(measurements)
    found = pairs(measurements)
    if not found:
        return
    yield row(["ours, useful tokens/s", "against", *(f"{count} clients" for count in clients)])
    yield "|:--|:--" + "|--:" * len(clients) + "|"
    for ours, other in found:
        cells = [ratio_cell(ratio(measurements, ours, other, count)) for count in clients]
        yield row([ours.dtype, other.label, *cells])
    yield ""


def ratio_cell(found: Ratio | None) -> str:
    """The median, in round brackets the least and the most, in square brackets what is asked."""
    if found is None:
        return ""
    spread = f" ({found.least:.2f} to {found.most:.2f})" if found.num_rounds > 1 else ""
    asked = "" if found.asked is None else f" [≥ {found.asked:g}]"
    missed = " missed" if found.is_missed else ""
    doubtful = " (busy machine)" if found.is_doubtful else ""
    return f"{found.middle:.2f}{spread}{asked}{missed}{doubtful}"


def figure_table(measurements: Sequence[Measurement]) -> Iterator[str]:
    """A row for each number of clients and target: medians over the rounds."""
    if not measurements:
        return
    yield from head(FIGURES)
    for variant, clients, found in groups(measurements):
        shares = [each.roofline_share for each in found if each.roofline_share is not None]
        yield row(
            [
                str(clients),
                variant.label,
                rate_cell(found),
                f"{median(shares):.0%}" if shares else "",
                *(seconds(found, of) for of in (p50, p90, p99)),
                str(min(each.num_requests for each in found)),
                machine_figure(found, "server_cpu_cores"),
                machine_figure(found, "memory_gib"),
            ]
        )
    yield ""


def stream_table(measurements: Sequence[Measurement]) -> Iterator[str]:
    """What readers of streams wait for."""
    if not measurements:
        return
    yield from head(STREAMS)
    for variant, clients, found in groups(measurements):
        first = [each.time_to_first_token for each in found]
        between = [each.inter_token_latency for each in found]
        tokens = median(each.server.get("tokens_per_chunk", 0.0) for each in found)
        cells = [waits(first), waits(between), f"{tokens:.2f}", rate_cell(found)]
        yield row([str(clients), variant.label, *cells])
    yield ""


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
    rates = [each.output_tokens_per_s or 0.0 for each in found]
    spread = f" ({min(rates):,.0f} to {max(rates):,.0f})" if len(rates) > 1 else ""
    return f"{median(rates):,.0f}{spread}"


def seconds(found: Sequence[Measurement], of: Callable[[Percentiles], float]) -> str:
    """A percentile of the latencies, median over the rounds."""
    values = [of(each.latency) / 1000 for each in found if each.latency]
    return f"{median(values):.2f}" if values else ""


def waits(found: Sequence[Percentiles | None]) -> str:
    """``101 / 445``, medians over the rounds."""
    known = [each for each in found if each]
    return f"{median(map(p50, known)):.0f} / {median(map(p99, known)):.0f}" if known else ""


def machine_figure(found: Sequence[Measurement], name: str) -> str:
    """A figure of the machine, median over the rounds."""
    values = [each.machine[name] for each in found if name in each.machine]
    return f"{median(values):.1f}" if values else ""


def p50(times: Percentiles) -> float:
    return times.p50_ms


def p90(times: Percentiles) -> float:
    return times.p90_ms


def p99(times: Percentiles) -> float:
    return times.p99_ms


def head(columns: Sequence[str]) -> Iterator[str]:
    """The first two lines of a table whose second column is text."""
    yield row(columns)
    yield "|--:|:--" + "|--:" * (len(columns) - 2) + "|"


def row(cells: Sequence[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"

"""A comparison as Markdown, as JSON and as an HTML page, and all files of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from perf.report.comparison.loads import Compared, Comparison, Failure, Pair, load_words
from perf.report.markdown import escaped, table
from perf.report.metrics import shown
from perf.report.page import render
from perf.report.plots.charts import NO_PLOTS, sections
from perf.report.plots.panels import COMPARES_RUNS, MAX_PANELS, RUN, panels
from perf.report.points import points
from perf.report.results import Results
from perf.report.run_markdown import title
from perf.report.schema import Measurement
from perf.report.written import write_text

SCHEMA_VERSION = 1
FILES = ("compare.json", "compare.md", "compare.html")
_CHARTS = ("trade-off", "throughput", "latency", "ttft", "itl", "tokens")
_MAX_LISTED = 10
NOT_JUDGED = (
    "With one measurement of a load there is no telling noise from a difference: measure both with "
    "`repeats: 3` or more in the scenario."
)
RULE = (
    "Figures are geometric means of the repeats, ratios are B/A, and brackets hold the ratio with "
    "95 %: Welch's t test on logarithms. A ratio whose brackets hold 1 is noise. By chance alone "
    "one ratio in twenty looks different, and two runs may differ by more than their repeats do: "
    "measure A twice to see."
)


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Makes the folder and its three files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FILES[0], json.dumps(to_json(comparison), indent=2) + "\n")
    write_text(folder / FILES[1], to_markdown(comparison))
    write_text(folder / FILES[2], to_html(comparison))


def to_html(comparison: Comparison) -> str:
    """The whole page; the same runs give the same text."""
    both = [*_marked(comparison.a, "A"), *_marked(comparison.b, "B")]
    drawn = panels(COMPARES_RUNS, points(both))
    return render(
        Path(__file__).parents[1] / "comparison.html.j2",
        comparison=comparison,
        names={"A": name_of(comparison.a), "B": name_of(comparison.b)},
        warnings=list(warnings(comparison)),
        rule=RULE if comparison.is_judged else NOT_JUDGED,
        sections=sections(both, drawn[:MAX_PANELS], _CHARTS),
        no_plots=NO_PLOTS,
        panels_left_out=len(drawn[MAX_PANELS:]),
        ratio_words=ratio_words,
        load_words=load_words,
        shown=shown,
    )


def _marked(results: Results, name: str) -> Iterator[Measurement]:
    """The measurements, with the run that they are of as a setting."""
    for each in results.measurements:
        settings = {**each.load.settings, RUN[1]: name}
        yield replace(each, load=replace(each.load, settings=settings))


def to_markdown(comparison: Comparison) -> str:
    """What differs, all loads together, then each load."""
    names = (escaped(name_of(results)) for results in (comparison.a, comparison.b))
    lines = ["# A: {}, B: {}".format(*names), ""]
    said = [f"- **{head}**: {escaped(text)}" for head, text in warnings(comparison)]
    lines += [*said, ""] if said else []
    if comparison.overall:
        count = len(comparison.pairs)
        lines += [f"B/A over all {count} loads that both have, geometric means:", ""]
        lines += [*(f"- {x.metric.label}: {ratio_words(x)}" for x in comparison.overall), ""]
    lines += [*_table(comparison), ""]
    lines += [RULE if comparison.is_judged else NOT_JUDGED]
    return "\n".join(lines) + "\n"


def name_of(results: Results) -> str:
    """A run's title and when it was."""
    return f"{title(results)} ({results.run.created})"


def ratio_words(compared: Compared) -> str:
    """Such as ``1.04 (0.99 to 1.09) noise``."""
    interval = compared.difference.interval()
    brackets = f" ({_factor(interval[0])} to {_factor(interval[1])})" if interval else ""
    verdict = f" {compared.verdict}" if compared.verdict else ""
    return f"{compared.difference.ratio:.2f}{brackets}{verdict}"


def _factor(value: float) -> str:
    """Two digits after the point; three where it would seem to be 1 and isn't."""
    text = f"{value:.2f}"
    return f"{value:.3f}" if text == "1.00" and value != 1 else text


def warnings(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """What a reader has to know before the ratios: a heading, and what it is about."""
    for line in comparison.differing:
        yield "not the same", line
    for name, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        for point in only[:_MAX_LISTED]:
            yield f"only in {name}", load_words(point.load)
        if len(only) > _MAX_LISTED:
            yield f"only in {name}", f"{len(only) - _MAX_LISTED} more loads"
    for pair in comparison.pairs:
        if pair.fails_anew:
            yield "requests fail in B only", load_words(pair.a.load)
    for name, results in (("A", comparison.a), ("B", comparison.b)):
        for problem in results.problems:
            yield f"not read of {name}", problem
    if comparison.is_judged and (single := num_not_judged(comparison)):
        yield "without repeats", f"{single} loads, of which noise can't be judged"


def num_not_judged(comparison: Comparison) -> int:
    """Loads without repeats on both sides."""
    return sum(
        not any(each.difference.is_judged for each in pair.compared) for pair in comparison.pairs
    )


def failure_words(failure: Failure) -> str:
    """One line for a figure that is too slow."""
    where = load_words(failure.pair.a.load) if failure.pair else "all loads together"
    return f"{where}: {failure.compared.metric.label}: {ratio_words(failure.compared)}"


def to_json(comparison: Comparison) -> dict[str, Any]:
    """For programs; ratios are B/A, and an interval is null where noise can't be judged."""
    return {
        "schema_version": SCHEMA_VERSION,
        "a": _run_json(comparison.a),
        "b": _run_json(comparison.b),
        "differing": list(comparison.differing),
        "overall": [_compared_json(each) for each in comparison.overall],
        "loads": [_pair_json(pair) for pair in comparison.pairs],
        "only_a": [asdict(point.load) for point in comparison.only_a],
        "only_b": [asdict(point.load) for point in comparison.only_b],
    }


def _run_json(results: Results) -> dict[str, Any]:
    run = results.run
    return {"title": run.title, "created": run.created, "commit": run.commit, "kind": run.kind}


def _pair_json(pair: Pair) -> dict[str, Any]:
    return {
        "load": asdict(pair.a.load),
        "num_errors_a": pair.a.num_errors,
        "num_errors_b": pair.b.num_errors,
        "repeats_a": len(pair.a.repeats),
        "repeats_b": len(pair.b.repeats),
        "figures": [_compared_json(each) for each in pair.compared],
    }


def _compared_json(compared: Compared) -> dict[str, Any]:
    interval = compared.difference.interval()
    return {
        "metric": compared.metric.name,
        "unit": compared.metric.unit,
        "lower_is_better": compared.metric.lower_is_better,
        "a": compared.a,
        "b": compared.b,
        "ratio": compared.difference.ratio,
        "interval": list(interval) if interval else None,
        "verdict": compared.verdict or None,
    }


def _table(comparison: Comparison) -> list[str]:
    heads = ["load", *(metric.heading for metric in comparison.metrics)]
    rows = []
    for pair in comparison.pairs:
        found = {each.metric: each for each in pair.compared}
        cells = [_cell(found[m]) if m in found else "" for m in comparison.metrics]
        rows.append([escaped(load_words(pair.a.load)), *cells])
    return table([*map(escaped, heads)], rows, "<" * len(heads))


def _cell(compared: Compared) -> str:
    return f"{shown(compared.a)} → {shown(compared.b)}: {ratio_words(compared)}"

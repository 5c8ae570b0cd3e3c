"""The figures of shared prefixes, without an engine."""

from __future__ import annotations

import json
from dataclasses import asdict

from perf.shared_prefixes.__main__ import parse_args
from perf.shared_prefixes.report import (
    Figures,
    FirstTokens,
    Report,
    Throughput,
    figures_of,
    to_markdown,
)

FIGURES = Figures(
    [FirstTokens(1, shared_s=[0.02, 0.01, 0.03], alone_s=[0.4, 0.5, 0.3])],
    [
        Throughput(
            "mixed",
            32,
            [(True, 9, 2.0, 4.0), (False, 9, 1.0, 4.0), (False, 9, 3.0, 3.0), (True, 9, 3.0, 2.0)],
        )
    ],
)


def test_a_cost_compares_the_two_of_a_pair_whichever_came_first() -> None:
    assert FIGURES.throughput[0].ratios(2) == [0.5, 1.0]
    assert FIGURES.throughput[0].ratios(3) == [1.0, 1.5]


def test_figures_come_back_from_the_measuring_process_as_they_were() -> None:
    assert figures_of(json.dumps(asdict(FIGURES))) == FIGURES


def test_the_tables_have_medians_and_how_far_rounds_differ() -> None:
    text = to_markdown(Report("now", "perf", "abc", {}, {}, "llama", {}, FIGURES))
    assert "| 1 | 20.0 ms | 400.0 ms | 20.0 |" in text
    assert "| mixed | 32 | 0.750 (0.500-1.000) | 1.250 (1.000-1.500) |" in text


def test_the_command_line_says_where_results_go() -> None:
    args = parse_args(["--quick", "--output", "here"])
    assert (args.quick, str(args.output), args.seed) == (True, "here", 0)

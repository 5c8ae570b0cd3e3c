"""The table as readers see it, and the JSON as programs do."""

from __future__ import annotations

import json
from dataclasses import replace

from perf.baselines.report import (
    BASELINE,
    IN_PROCESS,
    THROUGH_TRITON,
    Report,
    to_json,
    to_markdown,
    to_table,
)
from perf.load.measure import Level


def level(clients: int, useful_tokens_per_s: float) -> Level:
    return Level(
        clients=clients,
        num_requests=100,
        num_useful_tokens=4960,
        counted_s=20.0,
        useful_tokens_per_s=useful_tokens_per_s,
        p50_s=1.0,
        p90_s=2.345,
        p99_s=3.0,
        num_problems=0,
        first_problem=None,
    )


REPORT = Report(
    created="2030-01-01T00:00:00+00:00",
    command="python -m perf.baselines",
    commit="0123456789ab",
    hardware={"cpu": "A CPU", "cores": 2},
    versions={"python": "3.11.7"},
    model="Llama shape",
    load={"seed": 0},
    levels={
        BASELINE: [level(1, 45.0), level(32, 104.0)],
        THROUGH_TRITON: [level(1, 131.0), level(32, 1010.0)],
        IN_PROCESS: [level(1, 134.0), level(32, 1040.0)],
    },
)


def test_the_table_goes_by_clients_and_has_ratios_in_our_rows() -> None:
    assert to_table(REPORT).splitlines() == [
        (
            "| clients | served by | useful tokens/s | p50 s | p90 s | p99 s | requests "
            "| x baseline | of in process |"
        ),
        "|--:|:--|--:|--:|--:|--:|--:|--:|--:|",
        "| 1 | tutorial model | 45 | 1.00 | 2.35 | 3.00 | 100 |  |  |",
        "| 1 | in-flight engine | 131 | 1.00 | 2.35 | 3.00 | 100 | 2.9 (≥ 2.5) | 98% (≥ 95%) |",
        "| 1 | the same, in process | 134 | 1.00 | 2.35 | 3.00 | 100 |  |  |",
        "| 32 | tutorial model | 104 | 1.00 | 2.35 | 3.00 | 100 |  |  |",
        "| 32 | in-flight engine | 1,010 | 1.00 | 2.35 | 3.00 | 100 | 9.7 (≥ 9) | 97% (≥ 95%) |",
        "| 32 | the same, in process | 1,040 | 1.00 | 2.35 | 3.00 | 100 |  |  |",
    ]


def test_a_target_that_was_not_measured_leaves_its_ratio_empty() -> None:
    alone = replace(REPORT, levels={THROUGH_TRITON: [level(3, 131.0)]})
    assert to_table(alone).splitlines()[2:] == [
        "| 3 | in-flight engine | 131 | 1.00 | 2.35 | 3.00 | 100 |  |  |"
    ]


def test_the_markdown_names_command_commit_machine_and_versions() -> None:
    text = to_markdown(REPORT)
    assert "- command: `python -m perf.baselines`\n" in text
    assert "- commit: 0123456789ab\n" in text
    assert "- hardware: cpu A CPU, cores 2\n" in text
    assert "problem" not in text


def test_bad_answers_are_named_under_the_table() -> None:
    bad = replace(level(8, 90.0), num_problems=2, first_problem="HTTP 503: full")
    text = to_markdown(replace(REPORT, levels={BASELINE: [bad]}))
    assert text.endswith(
        "- **problem**: tutorial model, 8 clients: 2 bad answers, the first: HTTP 503: full\n"
    )


def test_the_json_has_every_figure_under_its_field_name() -> None:
    report = json.loads(to_json(REPORT))
    assert report["schema_version"] == 1
    assert report["levels"]["in-flight engine"][1]["clients"] == 32
    assert report["levels"]["in-flight engine"][1]["useful_tokens_per_s"] == 1010.0
    assert set(report) == {
        *("created", "command", "commit", "hardware", "versions"),
        *("model", "load", "levels", "schema_version"),
    }

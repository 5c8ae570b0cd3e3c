"""The tables of what serving costs, as readers see them, and the JSON as programs do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from perf.load.measure import Level
from perf.load.streaming import Streaming
from perf.serving_costs.levels import COMMANDS, GRPC, SSE, CostLevel, Costs
from perf.serving_costs.report import (
    QUESTIONS,
    WAYS,
    CostReport,
    cost_table,
    ratios,
    throughput_table,
    to_json,
    to_markdown,
    waiting_table,
)
from perf.serving_costs.repository import DIRECT, FRONT

STREAMS = Streaming(
    num_answers=100,
    num_chunks=4000,
    tokens_per_chunk=1.25,
    first_p50_s=0.1,
    first_p99_s=0.4454,
    between_p50_s=0.024,
    between_p99_s=0.0601,
)


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


def cost(way: str, number: int, rate: float) -> CostLevel:
    found = STREAMS if way in (SSE, GRPC) else None
    return CostLevel(way, number, level(32, rate), found, client_cores=0.125)


ROUNDS = [
    *(cost(DIRECT, 1, 1000.0), cost(FRONT, 1, 960.0)),
    *(cost(FRONT, 2, 990.0), cost(DIRECT, 2, 1100.0)),
    *(cost(DIRECT, 3, 900.0), cost(FRONT, 3, 891.0)),
]
WAITING = [cost(SSE, 1, 800.0), replace(cost(SSE, 1, 500.0), long_prompts_per_s=2.25)]
REPORT = CostReport(
    created="2030-01-01T00:00:00+00:00",
    command="python -m perf.serving_costs",
    commit="0123456789ab",
    hardware={"cpu": "A CPU", "cores": 2},
    versions={"python": "3.11.7"},
    model="Llama shape",
    load={"seed": 0},
    costs=Costs(ROUNDS, WAITING, idle_cores=0.014),
)


def test_a_way_has_the_median_of_its_rounds_and_the_ends() -> None:
    assert list(throughput_table(ROUNDS)) == [
        "| 32 clients | useful tokens/s | p50 s | p99 s | load generator, cores |",
        "|:--|--:|--:|--:|--:|",
        "| `/infer`, engine served directly | 1,000 (900 to 1,100) | 1.00 | 3.00 | 0.12 |",
        "| `/infer` through the front | 960 (891 to 990) | 1.00 | 3.00 | 0.12 |",
    ]


def test_ratios_are_of_levels_of_the_same_round() -> None:
    assert ratios(ROUNDS, QUESTIONS[0]) == pytest.approx([0.96, 0.90, 0.99])
    assert list(cost_table(ROUNDS))[2:] == [
        (
            "| forwarding | `/infer` through the front | `/infer`, engine served directly "
            "| 96.0% (90.0% to 99.0%) | ≥ 95% |"
        )
    ]


def test_waiting_times_are_in_milliseconds() -> None:
    assert list(waiting_table(WAITING))[2:] == [
        "| 32 |  | 100 / 445 | 24 / 60 | 1.25 | 800 | 100 |",
        "| 32 | 2.2 | 100 / 445 | 24 / 60 | 1.25 | 500 | 100 |",
    ]


def test_every_way_that_is_measured_has_a_name_and_every_question_two_ways() -> None:
    assert set(WAYS) == set(COMMANDS)
    assert {name for question in QUESTIONS for name in (question.way, question.against)} == set(
        COMMANDS
    )


def test_the_markdown_names_the_machine_and_bad_answers() -> None:
    text = to_markdown(REPORT)
    assert "- hardware: cpu A CPU, cores 2\n" in text
    assert "- all engines loaded, no requests: 0.01 cores\n" in text
    assert "problem" not in text
    bad = replace(ROUNDS[0], level=replace(level(32, 90.0), num_problems=2, first_problem="cut"))
    text = to_markdown(replace(REPORT, costs=Costs([bad], [], 0.0)))
    assert text.endswith("served directly, 32 clients: 2 bad answers, the first: cut\n")


def test_the_json_has_every_level() -> None:
    report = json.loads(to_json(REPORT))
    assert report["schema_version"] == 1
    assert [found["way"] for found in report["costs"]["rounds"]][:3] == [DIRECT, FRONT, FRONT]
    assert report["costs"]["waiting"][1]["streaming"]["first_p99_s"] == 0.4454

"""The order of the levels, and what a run that was stopped still lacks."""

from __future__ import annotations

from dataclasses import replace

from perf.lab.baselines.plan import Plan, Step
from perf.lab.baselines.targets import Variant
from perf.report.schema import Measurement

OURS, VLLM = Variant("ours", "float32"), Variant("vllm", "float32")
PLAN = Plan((OURS, VLLM), (1, 8), num_rounds=2, num_requests=512, max_level_s=900, seed=0)


def measured(step: Step) -> Measurement:
    return Measurement(
        load=step.load,
        repeat=step.round,
        started="2030-01-01T00:00:00+00:00",
        duration_s=1.0,
        num_requests=512,
        num_errors=0,
        requests_per_s=512.0,
    )


def test_targets_alternate_at_each_number_of_clients_and_turn_around_every_other_round() -> None:
    assert [(step.round, step.clients, step.variant) for step in PLAN.steps()] == [
        *((0, 1, OURS), (0, 1, VLLM), (0, 8, OURS), (0, 8, VLLM)),
        *((1, 1, VLLM), (1, 1, OURS), (1, 8, VLLM), (1, 8, OURS)),
    ]


def test_both_of_ours_stream_over_tritons_own_endpoint() -> None:
    steps = [
        Step(0, 8, Variant(name, "float32"), streams=True) for name in ("ours", "ours-vllm", "vllm")
    ]
    endpoints = [step.load.endpoint for step in steps]
    assert endpoints[:2] == ["http-generate-stream"] * 2
    assert endpoints[2] != endpoints[0]


def test_streams_are_levels_of_targets_that_stream_up_to_64_clients() -> None:
    plan = replace(
        PLAN, variants=(OURS, Variant("tutorial", "float16")), clients=(64, 256), streams=True
    )
    streams = [step for step in plan.steps() if step.streams]
    assert [(step.clients, step.variant) for step in streams] == [(64, OURS)] * 2
    assert streams[0].load.endpoint == "http-generate-stream"


def test_all_targets_of_a_round_are_sent_the_same_and_no_two_levels_are() -> None:
    steps = list(PLAN.steps())
    seeds = {(step.round, step.clients): PLAN.arguments(step).seed for step in steps}
    assert all(PLAN.arguments(step).seed == seeds[step.round, step.clients] for step in steps)
    assert len(set(seeds.values())) == 4
    assert replace(PLAN, seed=1).arguments(steps[0]).seed != PLAN.arguments(steps[0]).seed


def test_enough_is_sent_for_as_many_to_be_counted_as_are_asked_for() -> None:
    step = next(step for step in PLAN.steps() if step.clients == 8)
    assert PLAN.arguments(step).policy.min_requests == 512 + 2 * 8


def test_the_first_round_of_a_longer_plan_counts_for_it() -> None:
    first = [measured(step) for step in replace(PLAN, num_rounds=1).steps()]
    assert {step.round for step in PLAN.missing(first)} == {1}

"""The command line of the comparison."""

from __future__ import annotations

import argparse

import pytest

from perf.lab.baselines.targets import TARGETS, Variant
from perf.lab.verbs.baselines import add_arguments, plan_of


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_without_arguments_everything_is_measured_at_steady_state() -> None:
    plan = plan_of(parsed())
    assert [variant.name for variant in plan.variants].count("vllm") == 2
    assert {variant.name for variant in plan.variants} == {target.name for target in TARGETS}
    assert (plan.clients, plan.num_rounds, plan.num_requests) == ((1, 8, 32, 64, 256), 3, 512)


def test_a_number_format_leaves_out_what_has_only_others_but_for_what_has_one_of_its_own() -> None:
    plan = plan_of(parsed("--dtypes", "bfloat16", "--targets", "vllm,tutorial,fastapi,ours"))
    assert plan.variants == (
        Variant("ours", "bfloat16"),
        Variant("tutorial", "float16"),
        Variant("vllm", "bfloat16"),
    )


def test_quick_is_less_and_what_is_asked_for_beside_it_wins() -> None:
    plan = plan_of(parsed("--quick", "--clients", "32", "--rounds", "2"))
    assert (plan.clients, plan.num_rounds, plan.num_requests) == ((32,), 2, 24)


@pytest.mark.parametrize(
    "words,message",
    [
        (["--clients", "0"], "got '0', expected numbers from 1, as in 1,8,32"),
        (["--clients", "many"], "got 'many', expected numbers from 1, as in 1,8,32"),
        (["--targets", "gpu"], "got 'gpu', expected some of ours,in-process,tutorial"),
        (["--dtypes", "float16"], "got 'float16', expected some of float32,bfloat16"),
        (["--requests", "-1"], "got '-1', expected a whole number from 1"),
        (["--rounds", "0"], "got '0', expected a whole number from 1"),
        (["--ports", "80"], "got '80', expected two ports, as in 19100-19149"),
        (["--ports", "9-8"], "got '9-8', expected two ports, as in 19100-19149"),
        (["--ports", "1-70000"], "got '1-70000', expected two ports, as in 19100-19149"),
    ],
)
def test_a_wrong_argument_says_what_is_allowed(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parsed(*words)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err

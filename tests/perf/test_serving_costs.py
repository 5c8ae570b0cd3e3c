"""The command line of the serving costs, and what load generators are told by theirs."""

from __future__ import annotations

import argparse

import pytest

from perf.load.level_process import LevelArguments
from perf.load.measure import Policy
from perf.serving_costs.__main__ import parse_args


def test_without_arguments_everything_is_measured() -> None:
    args = parse_args([])
    assert (args.quick, args.rounds, args.seed) == (False, None, 0)
    assert str(args.output) == "perf/results/serving_costs"


def test_rounds_are_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_args(["--rounds", "0"]).rounds == 0
    with pytest.raises(SystemExit) as exit_info:
        parse_args(["--rounds", "-1"])
    assert exit_info.value.code == 2
    assert "got '-1', expected a number from 0" in capsys.readouterr().err


def test_a_load_generator_reads_what_its_parent_says() -> None:
    said = LevelArguments(32, 7, Policy(24, 1.5, 60.0), "long-prompts")
    parser = argparse.ArgumentParser()
    LevelArguments.add_to(parser)
    assert LevelArguments.of(parser.parse_args(said.command_line())) == said

"""Servers beside each other: the order, the table, and an environment made once."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from generator.errors import PerfError
from hf_triton.cli import main as cli
from perf import roofline
from perf.lab.baselines import run
from perf.lab.baselines.run import Plan, table
from perf.lab.baselines.servers import BY_NAME, Running
from perf.lab.verbs import baselines
from perf.report.schema import Load, Measurement

PLAN = Plan(("ours", "tutorial", "vllm"), ("float32",), (1, 128), 2, 100, 900, seed=0, streams=True)

UP = Running(8000, "a-model", 1)


def test_every_other_round_goes_in_the_opposite_order() -> None:
    order = [("ours", "float32"), ("tutorial", "float16"), ("vllm", "float32")]
    expected = [(0, *each) for each in order] + [(1, *each) for each in order[::-1]]
    assert list(PLAN.rounds()) == expected


def test_streams_follow_whole_answers_where_a_server_has_them() -> None:
    of_ours = [(load.endpoint, load.concurrency) for load in PLAN.loads("ours", "float32")]
    assert of_ours == [("http-infer", 1), ("http-infer", 128), ("http-infer-stream", 1)]
    assert len(list(PLAN.loads("tutorial", "float16"))) == 2


def test_all_servers_of_a_round_are_sent_the_same_and_never_the_same_twice() -> None:
    def prompts(name: str, number: int) -> list[str]:
        load = next(PLAN.loads(name, "float32"))
        return [json.loads(each.body)["prompt"] for each in PLAN.level(load, number, UP).sent]

    assert prompts("vllm", 0) == prompts("transformers-serve", 0)
    assert not set(prompts("vllm", 0)) & set(prompts("vllm", 1))


def measured(target: str, dtype: str, *rates: float) -> list[Measurement]:
    load = Load(target, "http-infer", concurrency=8, settings={"dtype": dtype})
    blank = Measurement(load, 0, "", 1.0, 1, 0, 1.0)
    return [replace(blank, repeat=n, output_tokens_per_s=rate) for n, rate in enumerate(rates)]


def test_a_server_is_a_row_with_ours_over_it() -> None:
    found = [
        *measured("ours", "float32", 600.0, 700.0),
        *measured("vllm", "float32", 300.0, 700.0),
        *measured("tutorial", "float16", 100.0),
    ]
    assert table(found)[2:] == [
        "| ours | float32 | 650 |",
        "| vllm | float32 | 500 (ours 1.50 times, 1.00 to 2.00) |",
        "| tutorial | float16 | 100 (ours 6.00 times) |",
    ]


def test_servers_that_are_compared_no_more_are_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"mlserver: compared no more; AIPerf or"):
        baselines._targets("ours,mlserver")


def test_the_list_says_how_to_install_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["perf", "baselines", "--list", "--environments", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"not installed: python -m venv {tmp_path}/vllm && {tmp_path}/vllm/bin/pip" in said
    (tmp_path / "vllm" / "bin").mkdir(parents=True)
    (tmp_path / "vllm" / "bin" / "vllm").touch()
    assert not BY_NAME["vllm"].missing(tmp_path)


def test_a_folder_of_another_comparison_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "figures", dict)
    run.begin(tmp_path, PLAN, "")
    assert run.begin(tmp_path, replace(PLAN, num_rounds=5), "").kind == "baselines"
    with pytest.raises(PerfError, match=r"holds another run \(different: seed\)"):
        run.begin(tmp_path, replace(PLAN, seed=1), "")

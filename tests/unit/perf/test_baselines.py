"""Servers beside each other: the order of rounds, what is sent, and what is installed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from generator.errors import PerfError
from hf_triton.cli import main as cli
from perf.lab.baselines import run
from perf.lab.baselines.run import Plan
from perf.lab.baselines.servers import BY_NAME

PLAN = Plan(("ours", "vllm"), ("float32", "bfloat16"), (1, 128), 2, 100, 900, seed=0)


def test_every_other_round_goes_in_the_opposite_order() -> None:
    order = [(name, dtype) for name in ("ours", "vllm") for dtype in ("float32", "bfloat16")]
    expected = [(0, *each) for each in order] + [(1, *each) for each in order[::-1]]
    assert list(PLAN.rounds()) == expected


def test_all_servers_of_a_round_are_sent_the_same_and_never_the_same_twice() -> None:
    def prompts(name: str, number: int) -> list[str]:
        load = next(PLAN.loads(name, "float32"))
        return [
            json.loads(each.body)["prompt"] for each in PLAN.level(load, number, "a-model").sent
        ]

    assert prompts("vllm", 0) == prompts("transformers-serve", 0)
    assert not set(prompts("vllm", 0)) & set(prompts("vllm", 1))


def test_the_list_says_how_to_install_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["perf", "baselines", "--list", "--environments", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"not installed: python -m venv {tmp_path}/vllm && {tmp_path}/vllm/bin/pip" in said
    (tmp_path / "vllm" / "bin").mkdir(parents=True)
    (tmp_path / "vllm" / "bin" / "vllm").touch()
    assert not BY_NAME["vllm"].missing(tmp_path)


def test_a_folder_of_another_comparison_is_refused(tmp_path: Path) -> None:
    run.begin(tmp_path, PLAN)
    assert run.begin(tmp_path, replace(PLAN, num_rounds=5)).kind == "baselines"
    with pytest.raises(PerfError, match=r"holds another run \(different: seed\)"):
        run.begin(tmp_path, replace(PLAN, seed=1))

"""A whole search with a fake bench: what is printed, kept, written, and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.report.schema import write_run
from perf.run_folder import locked_folder
from perf.tune.question import Goal, Request
from perf.tune.search import Search
from perf.tune.space import Space
from perf.tune.tuning import run as run_search
from tests.support.triton import DEMO_MODEL
from tests.unit.perf.tune.fake_bench import RUN, SEQS, FakeBench

YAML = f"""\
models:
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
    options: {{max_num_seqs: 4}}  # few
"""
SPACE = Space({SEQS: (1, 2, 4, 8, 16, 32)}, {SEQS: 4})


def run(folder: Path, goal: Goal, interrupt_at: int | None = None, write: bool = False) -> int:
    config = folder / "models.yaml"
    config.write_text(YAML)
    request = Request(
        model="demo",
        config=config,
        repository=folder,
        goal=goal,
        trials=6,
        seconds=3.0,
        concurrency=8,
        repeats=3,
        seed=0,
        write=write,
    )
    results = folder / "results"
    bench = FakeBench(interrupt_at=interrupt_at)
    with locked_folder(results):
        write_run(results, RUN)
        return run_search(Search(SPACE, request, bench, results))


def test_the_winner_is_told_from_noise_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, Goal("throughput"), write=True) == 0
    said = capsys.readouterr().out
    assert "best: trial" in said
    assert "output tokens, over the current settings': 8.00 (8.00 to 8.00) better" in said
    assert "+    options: {max_num_seqs: 32}  # few" in said
    assert "hf-triton apply" in said
    assert "{max_num_seqs: 32}  # few" in (tmp_path / "models.yaml").read_text()
    made = {path.name for path in (tmp_path / "results").iterdir()}
    assert {"report.json", "run.html", "run.md"} <= made


def test_a_bound_that_nothing_meets_ends_in_1_and_names_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, Goal("throughput", max_p99_ms=5), write=True) == 1
    said = capsys.readouterr().out
    assert "nothing meets the bounds (highest throughput with p99 at most 5 ms)" in said
    assert "max_num_seqs=1" in said.splitlines()[-1]
    assert (tmp_path / "models.yaml").read_text() == YAML

"""The search against a machine whose best settings are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.report.schema import read_measurements
from perf.tune.goal import Goal
from perf.tune.search import Effort, Search, ranked
from perf.tune.space import Dimension, Settings, Space
from perf.tune.tuning import table
from tests.unit.perf.tune.fake_bench import SEQS, TOKENS, FakeBench

THROUGHPUT = Goal("throughput")
SPACE = Space(
    (
        Dimension.of(SEQS, [1, 2, 4, 8, 16, 32, 64, 128], None),
        Dimension.of(TOKENS, [128, 256, 512, 1024, 2048], 512),
    ),
    {SEQS: None, TOKENS: 512},
)


def make(
    folder: Path,
    bench: FakeBench,
    goal: Goal = THROUGHPUT,
    space: Space = SPACE,
    trials: int = 25,
    patience: int | None = None,
    seed: int = 0,
) -> Search:
    effort = Effort(trials, seconds=3.0, patience=patience)
    return Search(space, goal, bench, folder, effort, seed)


def best(search: Search) -> Settings:
    found = ranked(search.outcomes(), search.goal)[0]
    assert found.state == "measured"
    return found.settings


@pytest.mark.parametrize(
    "goal, seqs",
    [
        (THROUGHPUT, 32),
        (Goal("throughput", max_p99_ms=100), 8),  # 80 ms; 16 would be faster at 160
        (Goal("latency"), 1),
        (Goal("latency", min_throughput=70), 8),
    ],
)
def test_the_best_that_keeps_to_the_bounds_is_found(tmp_path: Path, goal: Goal, seqs: int) -> None:
    search = make(tmp_path, FakeBench(), goal)
    search.run()
    assert best(search)[SEQS] == seqs


def test_nothing_is_tried_twice(tmp_path: Path) -> None:
    bench = FakeBench()
    space = Space((Dimension.of(SEQS, [1, 2, 4, 8], 8),), {SEQS: 8})
    reason = make(tmp_path, bench, space=space).run()
    assert reason == "every combination was tried"
    assert sorted(int(str(each[SEQS])) for each in bench.served) == [1, 2, 4, 8]


def test_settings_that_do_not_load_are_failed_trials_and_the_search_goes_on(tmp_path: Path) -> None:
    search = make(tmp_path, FakeBench(broken=lambda each: each[SEQS] == 32))
    search.run()
    assert best(search)[SEQS] in (16, 64, None)
    failed = [each for each in search.outcomes() if each.state == "failed"]
    assert failed
    assert "out of memory" in str(failed[0].measurement.first_error)


def test_a_model_that_never_loads_ends_the_search(tmp_path: Path) -> None:
    bench = FakeBench(broken=lambda _: True)
    reason = make(tmp_path, bench).run()
    assert reason == "3 trials, all failed"
    assert len(bench.served) == 3


def test_a_search_without_a_better_trial_ends(tmp_path: Path) -> None:
    reason = make(tmp_path, FakeBench(), Goal("latency"), patience=4, trials=40).run()
    assert reason == "4 trials without a better one"


def test_what_looks_worse_than_most_is_stopped_early(tmp_path: Path) -> None:
    bench = FakeBench()
    search = make(tmp_path, bench)
    search.run()
    stopped = [each for each in search.outcomes() if each.state == "stopped early"]
    assert stopped
    assert bench.seconds.count(3.0) == len(bench.served) - len(stopped)


def test_fixed_keys_are_set_in_every_trial_but_the_first(tmp_path: Path) -> None:
    bench = FakeBench()
    space = Space((SPACE.dimensions[0],), {SEQS: None, TOKENS: 512}, {TOKENS: 256})
    make(tmp_path, bench, space=space, trials=6).run()
    assert [each[TOKENS] for each in bench.served] == [512, 256, 256, 256, 256, 256]


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, FakeBench(interrupt_at=4), trials=8).run()
    assert len(read_measurements(tmp_path)) == 4
    bench = FakeBench()
    search = make(tmp_path, bench, trials=8)
    search.run()
    assert len(bench.served) == 4
    assert len(search.outcomes()) == 8
    assert [each.number for each in search.outcomes()] == list(range(8))


@pytest.mark.parametrize(
    "goal, shown",
    [
        (THROUGHPUT, "met"),
        (Goal("throughput", max_p99_ms=5), "missed: p99 by"),
        (Goal("throughput", max_ttft_ms=5), "missed: TTFT by"),
    ],
)
def test_the_table_says_whether_bounds_are_met(tmp_path: Path, goal: Goal, shown: str) -> None:
    search = make(tmp_path, FakeBench(), goal, trials=4)
    search.run()
    lines = table(search.outcomes(), goal)
    assert lines[0].startswith("| rank | trial | max_num_seqs |")
    assert all(shown in line for line in lines[2:])

"""The search against a machine whose best settings are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.report.schema import Value, read_measurements, write_run
from perf.tune.question import Goal, Request
from perf.tune.search import Search
from perf.tune.space import Settings, Space
from perf.tune.tuning import ranking
from tests.unit.perf.tune.fake_bench import RUN, SEQS, TOKENS, FakeBench

THROUGHPUT = Goal("throughput")
ALL: dict[str, tuple[Value, ...]] = {
    SEQS: (None, 1, 2, 4, 8, 16, 32, 64, 128),
    TOKENS: (128, 256, 512, 1024, 2048),
}
SPACE = Space(ALL, {SEQS: None, TOKENS: 512})


def make(
    folder: Path,
    bench: FakeBench,
    goal: Goal = THROUGHPUT,
    space: Space = SPACE,
    trials: int = 25,
) -> Search:
    write_run(folder, RUN)
    request = Request("demo", folder, folder, goal, 8, 3, trials, 3.0)
    return Search(space, request, bench, folder)


def best(search: Search) -> Settings:
    return search.ranked()[0].load.settings


@pytest.mark.parametrize(
    "goal, seqs",
    [
        (THROUGHPUT, 32),
        (Goal("throughput", max_p99_ms=100), 8),  # 80 ms; 16 would be faster at 160
        (Goal("latency"), 1),
    ],
)
def test_the_best_that_keeps_to_the_bounds_is_found(tmp_path: Path, goal: Goal, seqs: int) -> None:
    search = make(tmp_path, FakeBench(), goal)
    search.run()
    assert best(search)[SEQS] == seqs


def test_nothing_is_tried_twice(tmp_path: Path) -> None:
    bench = FakeBench()
    space = Space({SEQS: (1, 2, 4, 8)}, {SEQS: 8})
    reason = make(tmp_path, bench, space=space).run()
    assert reason == "no other value of a key is better"
    assert [each[SEQS] for each in bench.served] == [8, 4, 2]  # two in a row are worse


def test_settings_that_do_not_load_are_failed_trials_and_the_search_goes_on(tmp_path: Path) -> None:
    search = make(tmp_path, FakeBench(broken=lambda each: each[SEQS] == 32))
    search.run()
    assert best(search)[SEQS] in (16, 64, None)
    failed = [each for each in search.trials() if each.has_failed]
    assert failed
    assert "out of memory" in str(failed[0].first_error)


def test_a_model_that_never_loads_ends_the_search(tmp_path: Path) -> None:
    bench = FakeBench(broken=lambda _: True)
    reason = make(tmp_path, bench).run()
    assert reason == "3 trials, all failed"
    assert len(bench.served) == 3


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, FakeBench(interrupt_at=4), trials=8).run()
    assert len(read_measurements(tmp_path)) == 4
    bench = FakeBench()
    search = make(tmp_path, bench, trials=8)
    search.run()
    assert len(bench.served) == 4
    assert len(search.trials()) == 8


def test_the_ranking_has_the_best_first_and_says_what_failed(tmp_path: Path) -> None:
    make(tmp_path, FakeBench(broken=lambda each: each[SEQS] == 1), trials=12).run()
    head, _, *rows = ranking(tmp_path, THROUGHPUT)
    assert head.startswith("| options.max_num_batched_tokens | options.max_num_seqs | throughput")
    rates = [float(row.split("|")[4]) for row in rows if row.startswith("|")]
    assert rates == sorted(rates, reverse=True)
    failed = [row for row in rows if row.startswith("- failed: max_num_seqs=1, ")]
    assert all(row.endswith("model 'demo' failed to load: out of memory") for row in failed)

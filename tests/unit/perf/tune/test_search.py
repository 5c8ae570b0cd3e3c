"""The search without a server: trials, bounds, the winner and its noise, and what is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perf.report.schema import (
    Load,
    Measurement,
    Percentiles,
    Run,
    Value,
    append,
    read_measurements,
    write_run,
)
from perf.run_folder import locked_folder
from perf.tune.bench import Measure, TrialError
from perf.tune.question import Goal, Request
from perf.tune.space import Settings, Space
from perf.tune.tuning import Search, compared, ranking
from perf.tune.tuning import run as run_search
from tests.support.triton import DEMO_MODEL

RUN = Run("tune", "", "hf-triton perf tune demo", "", {}, {})
SEQS, TOKENS = "options.max_num_seqs", "options.max_num_batched_tokens"


@dataclass
class FakeBench:
    """Throughput grows with ``max_num_seqs`` up to 32 and falls beyond; latency grows with it all
    the way. ``broken`` settings do not load.
    """

    broken: Callable[[Settings], bool] = lambda _: False
    interrupt_at: int | None = None  # the start that a Ctrl-C comes in
    served: list[Settings] = field(default_factory=list)

    @contextmanager
    def serving(self, settings: Settings) -> Iterator[Measure]:
        if self.interrupt_at == len(self.served):
            raise KeyboardInterrupt
        self.served.append(settings)
        if self.broken(settings):
            raise TrialError("model 'demo' failed to load: out of memory")
        yield lambda _: self._measure(settings)

    def _measure(self, settings: Settings) -> Measurement:
        per_s = tokens_per_s(settings)
        latency = 10.0 * float(settings.get(SEQS) or 64)
        return measurement(settings, per_s, latency)

    def failed(self, settings: Settings, reason: str) -> Measurement:
        return measurement(settings, 0.0, None, error=reason)


def tokens_per_s(settings: Settings) -> float:
    """Highest, 320, at 32 sequences and 512 tokens."""
    seqs, tokens = float(settings.get(SEQS) or 64), float(settings.get(TOKENS) or 512)
    return 10 * (seqs if seqs <= 32 else 32 - (seqs - 32) / 8) - abs(tokens - 512) / 64


def measurement(
    settings: Settings,
    tokens: float,
    p99_ms: float | None,
    ttft_ms: float | None = None,
    error: str | None = None,
    repeat: int = 0,
) -> Measurement:
    return Measurement(
        load=Load("demo", "http-infer", concurrency=8, settings=settings),
        repeat=repeat,
        started="2026-01-01T00:00:00+00:00",
        duration_s=1.0,
        num_requests=0 if error else 100,
        num_errors=1 if error else 0,
        first_error=error,
        requests_per_s=tokens / 16,
        output_tokens_per_s=tokens,
        latency=times(p99_ms),
        time_to_first_token=times(ttft_ms),
    )


def times(p99_ms: float | None) -> Percentiles | None:
    return None if p99_ms is None else Percentiles(p99_ms, p99_ms, p99_ms, p99_ms, p99_ms)


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


CURRENT, WINNER = {SEQS: 4}, {SEQS: 32}


def several(settings: dict[str, int], *tokens: float, p99_ms: float = 10.0) -> list[Measurement]:
    return [measurement(settings, each, p99_ms) for each in tokens]


def judged(folder: Path, goal: Goal, *trials: Measurement) -> Search:
    """A search with these trials, of two turns."""
    write_run(folder, RUN)
    for each in trials:
        append(folder, each)
    request = Request("demo", folder, folder, goal, 8, repeats=2, trials=9, seconds=1.0)
    return Search(Space({}, CURRENT), request, FakeBench(), folder)


@pytest.mark.parametrize(
    "goal, tokens, p99, ttft, met",
    [
        (Goal("throughput", max_p99_ms=100), 1, 100.0, None, True),
        (Goal("throughput", max_p99_ms=100), 1, 101.0, None, False),
        (Goal("throughput", max_ttft_ms=100), 1, 900.0, 100.0, True),
        (Goal("throughput", max_ttft_ms=100), 1, 900.0, None, False),
    ],
)
def test_a_bound_is_met_up_to_itself(
    goal: Goal, tokens: float, p99: float, ttft: float | None, met: bool
) -> None:
    assert goal.is_met(measurement({}, tokens, p99, ttft)) is met


def test_settings_that_refuse_requests_meet_no_bounds() -> None:
    assert not THROUGHPUT.is_met(measurement({}, 100, 10.0, error="HTTP 503: the queue is full"))


def test_whatever_meets_the_bounds_ranks_before_what_does_not(tmp_path: Path) -> None:
    figures = enumerate([(900, 300), (5, 110), (9, 400), (1, 90)])
    trials = [measurement({SEQS: number}, *each) for number, each in figures]
    search = judged(tmp_path, Goal("throughput", max_p99_ms=100), *trials)
    assert [each.load.settings[SEQS] for each in search.ranked()] == [3, 1, 0, 2]


def test_both_are_measured_in_turns_and_never_twice(tmp_path: Path) -> None:
    current, winner = measurement(CURRENT, 40, 10.0), measurement(WINNER, 320, 10.0)
    once_more = measurement(CURRENT, 41, 10.0, repeat=1)
    search = judged(tmp_path, THROUGHPUT, current, winner, once_more)
    again = search.in_turns(winner.load, current.load)
    assert search.bench.served == [WINNER, CURRENT, WINNER]
    assert [*map(len, again)] == [2, 2]


@pytest.mark.parametrize(
    "winner, verdict",
    [((110, 99, 115), "noise"), ((190, 200, 210), "better"), ((50, 49, 51), "worse"), ((190,), "")],
)
def test_a_winner_is_better_where_its_repeats_scatter_less(
    winner: tuple[float, ...], verdict: str
) -> None:
    found = compared(several(WINNER, *winner), several(CURRENT, 100, 104, 96), THROUGHPUT)
    assert found is not None
    assert found.verdict == verdict


YAML = f"""\
models:
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
    options: {{max_num_seqs: 4}}  # few
"""
NARROW = Space({SEQS: (1, 2, 4, 8, 16, 32)}, {SEQS: 4})


def tune(folder: Path, goal: Goal, interrupt_at: int | None = None, write: bool = False) -> int:
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
        return run_search(Search(NARROW, request, bench, results))


def test_the_winner_is_told_from_noise_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path, Goal("throughput"), write=True) == 0
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
    assert tune(tmp_path, Goal("throughput", max_p99_ms=5), write=True) == 1
    said = capsys.readouterr().out
    assert "nothing meets the bounds (highest throughput with p99 at most 5 ms)" in said
    assert "max_num_seqs=1" in said.splitlines()[-1]
    assert (tmp_path / "models.yaml").read_text() == YAML

"""The number of threads that steps are computed with, against machines made up of formulas."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from hf_triton.runtime.engine.thread_count import StepThreads

# Seconds of a step that would take one on one thread of a quiet machine.
Machine = Callable[[int, random.Random], float]


def quiet(threads: int, noise: random.Random) -> float:
    return noise.uniform(0.97, 1.05) * (0.05 + 0.95 / threads)


def beside_one(threads: int, noise: random.Random) -> float:
    """A core of two is left: a second thread is waited for, in some steps for long."""
    waits = noise.choice((0.2, 0.5, 4.0)) if threads > 1 else 0.0
    return quiet(threads, noise) + waits


def beside_many(threads: int, noise: random.Random) -> float:
    """Each thread gets a share: two get more than one."""
    return quiet(threads, noise) * noise.choice((1, 2, 4, 5))


def loads(noise: random.Random) -> int:
    """Tokens of a step: 32 decodes, now and then with a prompt."""
    return 32 if noise.random() < 0.8 else noise.choice((40, 90, 400))


class Run:
    """Steps on machines, one after the other."""

    def __init__(self, most: int = 2, tokens: Callable[[random.Random], int] = lambda _: 1) -> None:
        self.threads, self.noise, self.tokens = StepThreads(most), random.Random(1), tokens
        self.settled: list[int] = []

    def on(self, machine: Machine, seconds: float) -> Counter[int]:
        """Computes for so long -> the seconds with each number of threads."""
        used: Counter[int] = Counter()
        while used.total() < seconds:
            num_tokens = self.tokens(self.noise)
            took = machine(self.threads.count, self.noise) * 0.008 * (4 + num_tokens) / 5
            used[self.threads.count] += took  # type: ignore[assignment]
            self.threads.note(num_tokens, took)
            if [self.threads.settled] != self.settled[-1:]:
                self.settled.append(self.threads.settled)
        return used


@pytest.fixture(params=["one", "mixed"])
def run(request: pytest.FixtureRequest) -> Run:
    return Run(tokens=loads) if request.param == "mixed" else Run()


def test_fewer_threads_compute_while_that_is_faster_and_all_again_after(run: Run) -> None:
    run.on(quiet, 100)  # by now trials are as rare as they become
    run.on(beside_one, 90)
    assert run.on(beside_one, 90)[2] / 90 < 0.25
    run.on(quiet, 90)
    assert run.on(quiet, 90)[1] / 90 < 0.05
    assert run.settled == [2, 1, 2]


def test_trials_are_a_small_share_of_the_time_on_a_machine_that_never_rests() -> None:
    """One thread is the faster, and every ten steps or so all begin or end to take thrice as
    long.
    """
    level = 1.0

    def machine(threads: int, noise: random.Random) -> float:
        nonlocal level
        level = 4 - level if noise.random() < 0.1 else level
        return level * noise.uniform(0.97, 1.05) * (1 if threads == 1 else 2.5)

    used = Run(tokens=lambda _: 26).on(machine, 600)
    assert used[2] / 600 * (1 - 1 / 2.5) < 0.032


def test_all_threads_stay_where_each_gets_its_share() -> None:
    run = Run()
    used = run.on(beside_many, 60)
    assert run.settled == [2]
    assert used[1] / 60 < 0.1


def test_among_many_threads_the_best_number_is_found_and_left() -> None:
    def machine(threads: int, noise: random.Random) -> float:
        return noise.uniform(0.95, 1.05) * (1 / threads + 0.04 * max(0, threads - free))

    run, free = Run(most=16), 16
    run.on(machine, 30)
    assert run.threads.settled == 16
    free = 5
    run.on(machine, 60)
    assert run.threads.settled in (4, 6)
    free = 16
    run.on(machine, 120)
    assert run.threads.settled == 16


@pytest.mark.parametrize("num_tokens, seconds", [(0, 1.0), (5, 0.0)])
@pytest.mark.usefixtures("own_threads")
def test_steps_that_tell_nothing_decide_nothing(num_tokens: int, seconds: float) -> None:
    threads = StepThreads(2)
    for _ in range(100):
        threads.computes(num_tokens)
        threads.step_took(seconds)
    assert threads.count == 2


@pytest.fixture
def own_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that torch was told."""
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    return told


def steps(threads: StepThreads, told: list[int], num: int) -> None:
    """So many steps that are slow with more than one thread."""
    for _ in range(num):
        threads.computes(1)
        threads.step_took(0.01 * told[-1])


def test_torch_is_told_and_the_log_and_the_metric_say_it(
    own_threads: list[int], log_lines: list[str]
) -> None:
    threads = StepThreads(2)
    threads.start()
    steps(threads, own_threads, 500)
    assert own_threads[:2] == [2, 1]
    assert [f.samples[0].value for f in threads.families()] == [1.0]
    (line,) = log_lines
    assert line.startswith("I computing with 1 of 2 CPU threads")

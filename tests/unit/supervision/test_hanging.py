"""Tells processes that hang from slow ones."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from generator.errors import ServerError
from hf_triton.serving.supervision.hang_watch import Activity, HangingProcesses, activity
from hf_triton.serving.supervision.server_answers import ServerAnswers
from hf_triton.tritonserver.http_api import ModelVersion, ServerApi
from hf_triton.tritonserver.model_state import Seen
from tests.support.triton import eventually

PID = 7
ASLEEP = Activity(is_stopped=False, sleeps=True, cpu_s=10.0)


class Machine:
    """One process, looked at once a second; ``busy`` is its share of a core."""

    def __init__(self, now: Activity = ASLEEP, busy: float = 0.0) -> None:
        self.now, self.busy, self.now_s = now, busy, 0.0
        self._hanging = HangingProcesses(lambda pid, _: self.now, lambda: self.now_s)

    def hangs_after(self, silent: Callable[[float], float], at_most_s: int = 120) -> float | None:
        """The time at which it first counts as hanging; ``silent`` gives its silence at a time."""
        for _ in range(at_most_s):
            self.now_s += 1
            self.now = replace(self.now, cpu_s=self.now.cpu_s + self.busy)
            if self._hanging.among({PID: silent(self.now_s)}):
                return self.now_s
        return None


def always(now_s: float) -> float:
    return now_s


def never(now_s: float) -> float:
    return 0.0


STOPPED = replace(ASLEEP, is_stopped=True)
CASES: dict[str, tuple[Machine, Callable[[float], float], float | None]] = {
    "silent and idle": (Machine(), always, 8),
    "threads wait for a stuck interpreter": (Machine(busy=0.1), always, 8),
    "computes": (Machine(busy=0.5), always, 45),
    "waits for a core or a disk": (Machine(replace(ASLEEP, sleeps=False)), always, 45),
    "is heard of": (Machine(), never, None),
    "is heard of now and then": (Machine(), lambda now_s: now_s % 7, None),
    "stopped, and heard of just before": (Machine(STOPPED), never, 6),
    "stopped and going on again, as by cpulimit": (Machine(STOPPED, busy=0.1), never, None),
}


@pytest.mark.threat("hanging-processes")
@pytest.mark.parametrize("case", CASES)
def test_what_counts_as_hanging(case: str) -> None:
    machine, silent, seconds = CASES[case]
    assert machine.hangs_after(silent) == seconds


def test_one_that_has_ended_is_left_alone() -> None:
    hanging = HangingProcesses(lambda pid, _: None)
    assert hanging.among({PID: 100.0}) == {}


def test_the_kernel_tells_what_a_process_does() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert eventually(lambda: (now := activity(process.pid)) is not None and now.sleeps)
        process.send_signal(signal.SIGSTOP)
        assert eventually(lambda: (now := activity(process.pid)) is not None and now.is_stopped)
        process.kill()
    assert activity(process.pid) is None
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        assert eventually(lambda: (now := activity(process.pid)) is not None and now.cpu_s > 0.1)
        assert not getattr(activity(process.pid), "sleeps", True)
        process.kill()


def test_threads_are_looked_at_only_where_a_process_is_silent() -> None:
    looked: list[bool] = []

    def look(_pid: int, with_threads: bool) -> Activity:
        looked.append(with_threads)
        return ASLEEP

    hanging = HangingProcesses(look)
    for silent_s in (0.0, 1.9, 2.0):
        hanging.among({1: silent_s})
    assert looked == [False, False, True]


class Server:
    """Answers, or raises."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.is_alive = True
        self.asked: list[str] = []
        self.versions: list[ModelVersion] = []

    def index(self) -> list[ModelVersion]:
        self.asked.append("index")
        if self.error:
            raise self.error
        return self.versions

    def is_live(self) -> bool:
        self.asked.append("live")
        if not self.is_alive:
            raise TimeoutError
        return True


class Answers:
    def __init__(self) -> None:
        self.server, self.now_s = Server(), 0.0
        self.answers = ServerAnswers(cast(ServerApi, self.server), lambda: self.now_s)

    def ask_at(self, now_s: float) -> None:
        self.now_s = now_s
        self.answers.states()


def test_a_server_that_answers_is_asked_for_its_index_alone() -> None:
    asked = Answers()
    asked.ask_at(9)
    assert asked.server.asked == ["index"]
    assert asked.answers.silent_s == 0
    assert asked.answers.is_up


def test_a_server_without_answers_is_not_up_after_five_seconds_and_silent() -> None:
    asked = Answers()
    asked.server.error, asked.server.is_alive = TimeoutError(), False
    for now_s in (1, 4):
        asked.ask_at(now_s)
    assert asked.answers.is_up
    asked.ask_at(6)
    assert not asked.answers.is_up
    assert asked.answers.silent_s == 6
    assert asked.server.asked == ["index", "live", "live"], "each takes two seconds"
    asked.server.error, asked.server.is_alive = None, True
    asked.ask_at(7)
    assert asked.answers.is_up
    assert asked.answers.silent_s == 0


@pytest.mark.parametrize("error", [TimeoutError(), OSError(24, "no more"), ServerError("no")])
def test_a_server_that_shows_that_it_lives_is_not_silent(error: Exception) -> None:
    asked = Answers()
    asked.server.error = error
    for now_s in (1, 4, 8):
        asked.ask_at(now_s)
    assert not asked.answers.is_up
    assert asked.answers.silent_s <= 0


def test_a_folder_is_ready_where_one_of_its_versions_is() -> None:
    asked = Answers()
    asked.server.versions = [
        ModelVersion("a", "1", "READY", ""),
        ModelVersion("a", "2", "UNAVAILABLE", "no weights"),
        ModelVersion("b", "1", "UNAVAILABLE", "no weights"),
        ModelVersion("c", "1", "", ""),
    ]
    assert asked.answers.states() == {
        "a": Seen(is_ready=True, reason=""),
        "b": Seen(reason="b is UNAVAILABLE: no weights"),
        "c": Seen(reason="c is not loaded"),
    }

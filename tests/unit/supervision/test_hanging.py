"""Tells processes that hang from slow ones, and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from generator.errors import ServerError
from hf_triton.serving.supervision import hang_watch
from hf_triton.serving.supervision.hang_watch import (
    Activity,
    HangingProcesses,
    HangWatch,
    ServerAnswers,
    activity,
)
from hf_triton.serving.supervision.model_loader import ModelLoader
from hf_triton.tritonserver.child_process import ChildProcess
from hf_triton.tritonserver.http_api import ModelVersion, ServerApi
from hf_triton.tritonserver.model_state import Cause, Seen
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.stubs import Stub
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


GUARD, TRITONSERVER, STUB = 1, 2, 3


@dataclass
class Watched:
    heartbeats: str
    pid: int = GUARD
    was_killed: bool = False
    under_way: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def loads(self) -> Watched:
        return self

    def kill(self) -> None:
        self.was_killed = True


@dataclass
class Models:
    stubs: frozenset[Stub] = frozenset({Stub("a", "1", STUB)})
    ended: list[tuple[str, str]] = field(default_factory=list)

    killed: list[tuple[str, frozenset[int]]] = field(default_factory=list)

    def kill(self, folder: str, pids: frozenset[int]) -> None:
        self.killed.append((folder, pids))

    def end_processes(self, folder: str, cause: Cause, reason: str) -> None:
        assert cause in (Cause.HUNG, Cause.NOT_READY)
        self.ended.append((folder, reason))


@dataclass
class Silence:
    silent_s: float = 0.0
    loading: frozenset[tuple[str, str]] = frozenset()


@dataclass
class Ports:
    pid: int | None = None
    silent_s: float = 0.0

    def end_now(self, why: str) -> str:
        self.pid = None
        return f"the ports' process {why}"


class Ward:
    """A server whose processes do nothing, looked at once a second."""

    def __init__(self, folder: Path) -> None:
        self.server = Watched(f"{folder}/beat_")
        self.models, self.answers, self.ports = Models(), Silence(), Ports()
        self.said = list[str]()
        self.stopped: set[int] = set()
        self.is_starting = False  # a process that is not a model's yet
        self.now_s = 0.0
        self.watch = HangWatch(
            cast(TritonServer, self.server),
            cast(ServerAnswers, self.answers),
            cast(ModelLoader, self.models),
            cast(ChildProcess, self.ports),
            self.said.append,
            lambda: self.now_s,
        )
        self.watch.hanging = HangingProcesses(
            lambda pid, _: Activity(pid in self.stopped, True, 1.0), lambda: self.now_s
        )

    def look(self, seconds: int, is_silent: bool = False, is_loading: bool = False) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.answers.silent_s = self.answers.silent_s + 1 if is_silent else 0.0
            self.watch.look(is_loading)


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ward:
    monkeypatch.setattr(hang_watch, "server_process", lambda guard: TRITONSERVER)
    return Ward(tmp_path)


def test_a_server_that_answers_and_models_that_wait_are_left_alone(ward: Ward) -> None:
    ward.look(100)
    assert not ward.server.was_killed
    assert ward.models.ended == []


@pytest.mark.threat("hanging-processes")
def test_a_server_that_is_silent_and_idle_is_killed_within_ten_seconds(ward: Ward) -> None:
    ward.look(10, is_silent=True)
    assert ward.server.was_killed
    assert ward.said[0] == "tritonserver has not answered for 8 s and is killed"
    assert ward.models.ended == []


def test_while_models_load_a_server_may_be_silent_for_longer(ward: Ward) -> None:
    ward.look(44, is_silent=True, is_loading=True)
    assert not ward.server.was_killed
    ward.look(3, is_silent=True, is_loading=True)
    assert ward.server.was_killed


@pytest.mark.parametrize("pid", [GUARD, TRITONSERVER])
def test_a_server_that_was_stopped_is_killed(ward: Ward, pid: int) -> None:
    ward.stopped = {pid}
    ward.look(8)
    assert ward.said[0] == "tritonserver was stopped and is killed"
    assert ward.server.was_killed


@pytest.mark.threat("hanging-processes")
def test_a_models_process_whose_heartbeat_stops_is_ended(ward: Ward, tmp_path: Path) -> None:
    beat = tmp_path / f"beat_{STUB}"
    for number in range(20):
        beat.write_bytes(b"1")
        os.utime(beat, ns=(0, number))
        ward.look(1)
    assert ward.models.ended == []
    assert ward.watch.not_ready == set()
    ward.look(8)
    assert ward.models.ended == [("a", "its Python process has not answered for 8 s")]


@pytest.mark.threat("hanging-processes")
def test_the_ports_process_is_ended_where_it_is_silent(ward: Ward) -> None:
    ward.ports.pid = 4
    ward.look(20)
    assert ward.said == []
    for second in range(10):
        ward.ports.silent_s = float(second)
        ward.look(1)
    assert ward.said == ["the ports' process has not answered for 8 s"]


def test_a_model_that_says_so_is_not_ready_and_is_ended_after_a_minute(
    ward: Ward, tmp_path: Path
) -> None:
    beat, is_front = tmp_path / f"beat_{STUB}", tmp_path / "front/config.pbtxt"
    is_front.parent.mkdir()
    is_front.write_text(
        'parameters { key: "hf_triton_engine" value: { string_value: "front_stream" } }'
    )

    def say_so(seconds: int) -> None:
        for _ in range(seconds):
            ward.look(1)
            beat.write_bytes(b"0")
            os.utime(beat, ns=(0, int(ward.now_s)))
            ward.watch.look_at_models(tmp_path)

    ward.models.stubs = frozenset({Stub("front", "1", STUB)})
    say_so(70)
    assert ward.watch.not_ready == {"front"}
    ward.models.stubs = frozenset({Stub("a", "1", STUB)})
    say_so(60)
    assert ward.models.ended == []
    say_so(1)
    assert ward.models.ended == [("a", "it said for a minute that it is not ready")]
    say_so(60)
    assert len(ward.models.ended) == 1, "not at once again"
    ward.models.stubs = frozenset()
    ward.look(1)
    assert ward.watch.not_ready == set()
    assert not beat.exists(), "nobody else removes what a process that died has left"


@pytest.fixture
def hung(ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The load that hangs after so many seconds in which these versions were loading."""
    two = 'backend: "python" instance_group [{ count: 2 }]'
    configs = {"a": 'backend: "python"', "two": two, "steps": 'platform: "ensemble"'}
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(config)
    monkeypatch.setattr(hang_watch, "started_s", lambda pid: 10.0 * pid)
    monkeypatch.setattr(
        hang_watch, "starts_another", lambda server, _: server == TRITONSERVER and ward.is_starting
    )

    def look(seconds: int, *loading: tuple[str, str]) -> str:
        ward.answers.loading = frozenset(loading)
        for _ in range(seconds):
            ward.look(1)
            found = ward.watch.look_at_models(tmp_path)
        return found

    return look


def test_a_load_hangs_that_has_no_process_and_none_on_its_way(
    ward: Ward, hung: Callable[..., str]
) -> None:
    steps, new = ("steps", "1"), ("a", "2")  # beside version 1, which has a process
    assert hung(30, steps) == ""
    assert hung(10, steps, new) == ""
    ward.is_starting = True
    assert hung(30, steps, new) == ""
    ward.is_starting = False
    assert hung(5, steps, new) == ""
    assert hung(1, steps, new) == "a"
    ward.models.stubs |= {Stub("a", "2", 7)}
    assert hung(30, steps, new) == ""
    ward.models.stubs = frozenset()
    assert (hung(15, new), hung(1, new)) == ("", "a")


def test_a_load_hangs_that_lacks_one_of_its_processes(ward: Ward, hung: Callable[..., str]) -> None:
    ward.models.stubs |= {Stub("two", "1", 7)}
    assert (hung(15, ("two", "1")), hung(1, ("two", "1"))) == ("", "two")
    ward.models.stubs |= {Stub("two", "1", 8)}
    assert hung(30, ("two", "1")) == ""


def test_a_reload_hangs_whose_process_has_died_though_the_version_before_goes_on(
    ward: Ward, hung: Callable[..., str]
) -> None:
    ward.server.under_way = {("a", "1"): 10.0 * STUB + 5}
    assert (hung(15), hung(1)) == ("", "a")
    ward.models.stubs |= {Stub("a", "1", STUB + 1)}
    assert hung(30) == ""
    ward.server.under_way = {("steps", "1"): 0.0}
    assert hung(30) == "", "an ensemble needs no process"


def test_processes_that_have_loaded_unnoticed_are_ended(
    ward: Ward, hung: Callable[..., str], tmp_path: Path
) -> None:
    """After a second without a processor Triton gives a load up, and waits for its process' end."""
    ward.models.stubs |= {Stub("two", "1", 7), Stub("two", "1", 8)}
    ward.server.under_way = {("two", "1"): 50.0}

    def beat(seconds: int, *pids: int) -> None:
        for _ in range(seconds):
            for pid in pids:
                path = tmp_path / f"beat_{pid}"
                path.write_bytes(b"1")
                os.utime(path, ns=(0, int(ward.now_s)))
            assert hung(1) == ""

    beat(30, 7)  # the second one still loads
    beat(15, 7, 8)
    assert ward.models.killed == []
    beat(1, 7, 8)
    assert ward.said == ["Triton missed that model 'two' has loaded: its process is ended"]
    assert ward.models.killed == [("two", frozenset({7, 8}))], "not those of the version before"
    assert ward.models.ended == []


def test_a_load_that_waits_for_others_does_not_hang(ward: Ward, hung: Callable[..., str]) -> None:
    others = [("steps", str(version)) for version in range(4)]
    assert hung(30, ("a", "2"), *others) == "", "Triton loads four at once"
    assert (hung(15, ("a", "2"), *others[1:]), hung(1, ("a", "2"), *others[1:])) == ("", "a")


def test_of_a_new_server_no_load_hangs_yet(ward: Ward, hung: Callable[..., str]) -> None:
    assert hung(16, ("a", "2")) == "a"
    ward.server.pid = 9
    assert hung(15, ("a", "2")) == ""

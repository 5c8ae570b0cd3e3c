"""Ends processes that hang."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from hf_triton.serving.supervision import hang_watch
from hf_triton.serving.supervision.hang_watch import Activity, HangingProcesses, HangWatch
from hf_triton.serving.supervision.model_loader import ModelLoader
from hf_triton.serving.supervision.server_answers import ServerAnswers
from hf_triton.tritonserver.child_process import ChildProcess
from hf_triton.tritonserver.model_state import Cause
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.stubs import Stub

GUARD, TRITONSERVER, STUB = 1, 2, 3


@dataclass
class Server:
    heartbeats: str
    pid: int = GUARD
    was_killed: bool = False
    loads_under_way: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def loads(self) -> Server:
        return self

    def under_way(self) -> dict[tuple[str, str], float]:
        return self.loads_under_way

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
class Answers:
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
        self.server = Server(f"{folder}/beat_")
        self.models, self.answers, self.ports = Models(), Answers(), Ports()
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
    ward.server.loads_under_way = {("a", "1"): 10.0 * STUB + 5}
    assert (hung(15), hung(1)) == ("", "a")
    ward.models.stubs |= {Stub("a", "1", STUB + 1)}
    assert hung(30) == ""
    ward.server.loads_under_way = {("steps", "1"): 0.0}
    assert hung(30) == "", "an ensemble needs no process"


def test_processes_that_have_loaded_unnoticed_are_ended(
    ward: Ward, hung: Callable[..., str], tmp_path: Path
) -> None:
    """After a second without a processor Triton gives a load up, and waits for its process' end."""
    ward.models.stubs |= {Stub("two", "1", 7), Stub("two", "1", 8)}
    ward.server.loads_under_way = {("two", "1"): 50.0}

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

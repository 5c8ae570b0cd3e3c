"""Threads that repeat something: the pauses, a model's heartbeat, questions for cancellations."""

from __future__ import annotations

import itertools
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from hf_triton.runtime import log, repeating
from hf_triton.runtime.heartbeat import VARIABLE, Heartbeat
from hf_triton.runtime.repeating import Repeating
from hf_triton.runtime.request.cancellation import CancellationWatch, pause_s
from hf_triton.tritonserver import process
from tests.support.triton import eventually


def test_a_wake_does_not_shorten_the_pause_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(log, "error", logged.append)
    monkeypatch.setattr(repeating, "AFTER_ERROR_S", 0.3)
    began: list[float] = []

    def run() -> None:
        began.append(time.monotonic())
        again.wake()
        if len(began) < 3:
            raise ValueError

    again = Repeating("again", run)
    again.start()
    assert eventually(lambda: len(began) >= 4)
    again.close()
    pauses = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert min(pauses[:2]) >= 0.3
    assert len(logged) == 2


def test_an_end_does_not_wait_for_the_pause_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(log, "error", logged.append)
    monkeypatch.setattr(repeating, "AFTER_ERROR_S", 60.0)
    failing = Repeating("failing", lambda: 1 / 0)
    failing.start()
    assert eventually(lambda: bool(logged))
    began_s = time.monotonic()
    failing.close()
    assert time.monotonic() - began_s < 10


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/beat_")
    return tmp_path / f"beat_{os.getpid()}"


def test_a_beat_comes_every_second_and_says_whether_the_model_is_ready(path: Path) -> None:
    answers = [True, False]
    heartbeat = Heartbeat(lambda: answers.pop(0) if len(answers) > 1 else answers[0])
    assert eventually(lambda: path.exists() and path.read_bytes() == b"1", 20)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.stat().st_mtime_ns
    assert eventually(lambda: path.read_bytes() == b"0", 20)
    assert path.stat().st_mtime_ns > first
    heartbeat.stop()
    assert not path.exists()


def test_nobody_who_asks_for_none_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = threading.active_count()
    heartbeat = Heartbeat(lambda: True)
    assert threading.active_count() == before
    heartbeat.stop()


def test_a_place_that_is_not_there_keeps_no_model_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/nowhere/beat_")
    Heartbeat(lambda: True).stop()


def test_serve_asks_for_it_by_the_same_name() -> None:
    assert process.HEARTBEATS_VARIABLE == VARIABLE


@pytest.mark.parametrize(
    "num_asked, round_s, expected_s",
    [
        pytest.param(32, 0.0016, 0.08, id="fifty times what a round takes"),
        pytest.param(1, 0.00005, 0.005, id="never without a rest"),
        pytest.param(2, 0.004, 0.02, id="sooner for few, however slow the server is"),
        pytest.param(1000, 0.05, 1.0, id="every second at the latest"),
    ],
)
def test_the_pause_follows_what_asking_costs(
    num_asked: int, round_s: float, expected_s: float
) -> None:
    assert pause_s(num_asked, round_s) == pytest.approx(expected_s)


def test_a_server_that_can_not_tell_once_is_asked_again_and_not_while_nothing_waits(
    log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_triton.runtime.repeating.AFTER_ERROR_S", 0.01)
    asked, num_rounds = threading.Semaphore(0), 0

    def ask_all() -> int:
        nonlocal num_rounds
        num_rounds += 1
        if num_rounds == 1:
            raise OSError("no shared memory left")
        asked.release()
        return 0

    watch = CancellationWatch(ask_all)
    assert asked.acquire(timeout=60)
    assert not asked.acquire(timeout=0.05)
    watch.wake()
    assert asked.acquire(timeout=60)
    watch.close()
    [line] = log_lines
    assert "cancellations: OSError at test_repeating.py" in line

"""The heartbeat by which a supervisor watches a model's process."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from hf_triton.runtime.heartbeat import VARIABLE, Heartbeat
from hf_triton.tritonserver import process
from tests.support.triton import eventually


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

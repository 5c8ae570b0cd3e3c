"""What apply waits for when a running model is to have other adapters."""

from __future__ import annotations

import fcntl
import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from generator.errors import ServerError
from generator.render.digest import with_digest
from generator.repository import writing
from generator.repository.compare import ModelPlan, compare
from hf_triton.serving.apply import adapters

BEFORE = {"config.pbtxt": b'name: "m_stream"', "1/adapters.json": b"[]", "1/model.py": b"x = 1\n"}
AFTER = {**BEFORE, "1/adapters.json": b"[1]"}


class Process:
    """An instance that follows the list: what it says of each content; silent without."""

    def __init__(self, folder: Path, number: int, answers: dict[bytes, str]) -> None:
        self._answers, self._list = answers, folder / "m_stream" / "1" / "adapters.json"
        status = folder / "m" / "hf_cache" / "adapters" / f"m_stream-1-{number}.json"
        status.parent.mkdir(parents=True, exist_ok=True)
        self._status: IO[str] = status.open("w")
        fcntl.flock(self._status, fcntl.LOCK_EX)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        while not self._stop.wait(0.01):
            content = self._list.read_bytes()
            if content in self._answers:
                values = {"read": hashlib.sha256(content).hexdigest()}
                self._status.seek(0)
                self._status.truncate()
                json.dump({**values, "refusal": self._answers[content]}, self._status)
                self._status.flush()

    def end(self) -> None:
        """As a process ends: its file stays."""
        self._stop.set()
        self._thread.join()
        self._status.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Process]]:
    writing.apply(compare(tmp_path / "m_stream", with_digest(BEFORE)))
    found: list[Process] = []
    yield found
    for process in found:
        process.end()


def plan(folder: Path) -> ModelPlan:
    found = compare(folder / "m_stream", with_digest(AFTER))
    assert adapters.changes_adapters(found)
    return found


def listed(folder: Path) -> bytes:
    return (folder / "m_stream" / "1" / "adapters.json").read_bytes()


def test_every_process_that_runs_is_waited_for(tmp_path: Path, processes: list[Process]) -> None:
    fine = {b"[]": "", b"[1]": ""}
    processes += [Process(tmp_path, number, fine) for number in range(3)]
    processes.append(dead := Process(tmp_path, 3, {b"[]": ""}))
    dead.end()
    assert adapters.change(plan(tmp_path), "m") == "[]"
    assert listed(tmp_path) == b"[1]"


def test_what_one_process_refuses_is_taken_back_for_all(
    tmp_path: Path, processes: list[Process]
) -> None:
    processes.append(Process(tmp_path, 0, {b"[]": "", b"[1]": ""}))
    processes.append(Process(tmp_path, 1, {b"[]": "", b"[1]": "adapter a: no file"}))
    with pytest.raises(ServerError, match=r"^adapter a: no file; the adapters before go on$"):
        adapters.change(plan(tmp_path), "m")
    assert listed(tmp_path) == b"[]"
    assert compare(tmp_path / "m_stream", with_digest(BEFORE)).is_current


def test_where_nobody_follows_the_list_it_is_taken_back(
    tmp_path: Path, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "_SHOWN_WITHIN_S", 0.1)
    processes.append(Process(tmp_path, 0, {}))
    processes[0].end()
    with pytest.raises(ServerError, match="none of its processes says that it follows adapters"):
        adapters.change(plan(tmp_path), "m")
    assert listed(tmp_path) == b"[]"

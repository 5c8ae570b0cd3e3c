"""Apply changes the adapters of a running model: its waits, and its messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from generator.errors import ServerError
from generator.render.manifest import with_digest
from generator.repository import writing
from generator.repository.compare import ModelPlan, compare
from hf_triton.tritonserver import adapters
from tests.support.adapters_process import Process

BEFORE = {"config.pbtxt": b'name: "m_stream"', "1/adapters.json": b"[]", "1/model.py": b"x = 1\n"}
AFTER = {**BEFORE, "1/adapters.json": b"[1]"}


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
    fine = {b"[]": "", b"[1]": ""}.get
    processes += [Process(tmp_path, number, fine) for number in range(3)]
    processes.append(dead := Process(tmp_path, 3, {b"[]": ""}.get))
    dead.end()
    adapters.change(plan(tmp_path), "m")
    assert listed(tmp_path) == b"[1]"


def test_what_one_process_refuses_is_taken_back_for_all(
    tmp_path: Path, processes: list[Process]
) -> None:
    processes.append(Process(tmp_path, 0, {b"[]": "", b"[1]": ""}.get))
    processes.append(Process(tmp_path, 1, {b"[]": "", b"[1]": "adapter a: no file"}.get))
    with pytest.raises(
        ServerError, match=r"^adapter a: no file; the previous adapters stay in use$"
    ):
        adapters.change(plan(tmp_path), "m")
    assert listed(tmp_path) == b"[]"
    assert compare(tmp_path / "m_stream", with_digest(BEFORE)).is_current


def test_where_nobody_follows_the_list_it_is_taken_back(
    tmp_path: Path, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "SHOWN_WITHIN_S", 0.1)
    processes.append(Process(tmp_path, 0, lambda _content: None))
    processes[0].end()
    with pytest.raises(ServerError, match="no process reports that it watches adapters"):
        adapters.change(plan(tmp_path), "m")
    assert listed(tmp_path) == b"[]"

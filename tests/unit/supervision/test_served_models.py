"""The record of which models a server is to serve: written, read, and followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.tritonserver import state_file
from hf_triton.tritonserver.state_file import SERVED_FILE, write_served


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_served(tmp_path, ["b", "a"])
    assert state_file.served_models(tmp_path) == ("a", "b")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"models": 3}'])
def test_what_is_no_record_counts_for_nothing(tmp_path: Path, text: str) -> None:
    assert state_file.served_models(tmp_path) is None
    (tmp_path / SERVED_FILE).write_text(text)
    assert state_file.served_models(tmp_path) is None


def test_a_record_is_read_once_until_it_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = list[Path](), state_file.served_models

    def counted(repository: Path) -> tuple[str, ...] | None:
        reads.append(repository)
        return read(repository)

    served = ServedModels(tmp_path, ["b", "a"])
    served.record()
    monkeypatch.setattr(state_file, "served_models", counted)
    assert served.names() == served.names() == ["b", "a"]
    assert len(reads) == 1
    write_served(tmp_path, ["a", "c"])
    assert served.names() == served.names() == ["a", "c"]
    assert len(reads) == 2


def test_a_record_that_is_gone_or_broken_changes_no_names(tmp_path: Path) -> None:
    served = ServedModels(tmp_path, ["a"])
    served.record()
    (tmp_path / SERVED_FILE).write_text("{")
    assert served.names() == ["a"]
    (tmp_path / SERVED_FILE).unlink()
    assert served.names() == ["a"]
    write_served(tmp_path, ["b"])
    assert served.names() == ["b"]

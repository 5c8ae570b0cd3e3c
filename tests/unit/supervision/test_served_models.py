"""The models that a server is to serve, by the repository's record."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.repository import served_record
from generator.repository.served_record import RECORD_FILE, ServedRecord
from hf_triton.serving.supervision.served_models import ServedModels


def test_a_record_is_read_once_until_it_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = list[Path](), served_record.read

    def counted(repository: Path) -> ServedRecord | None:
        reads.append(repository)
        return read(repository)

    served = ServedModels(tmp_path, ["b", "a"])
    served.record()
    monkeypatch.setattr(served_record, "read", counted)
    assert served.names() == served.names() == ["b", "a"]
    assert len(reads) == 1
    served_record.write(tmp_path, ["a", "c"])
    assert served.names() == served.names() == ["a", "c"]
    assert len(reads) == 2


def test_a_record_that_is_gone_or_broken_changes_no_names(tmp_path: Path) -> None:
    served = ServedModels(tmp_path, ["a"])
    served.record()
    (tmp_path / RECORD_FILE).write_text("{")
    assert served.names() == ["a"]
    (tmp_path / RECORD_FILE).unlink()
    assert served.names() == ["a"]
    served_record.write(tmp_path, ["b"])
    assert served.names() == ["b"]

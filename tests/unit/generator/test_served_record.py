"""The file that says what is to be served."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.repository import served_record
from generator.repository.served_record import RECORD_FILE, ServedRecord


def test_what_was_written_is_read(tmp_path: Path) -> None:
    served_record.write(tmp_path, ["b", "a"])
    assert served_record.read(tmp_path) == ServedRecord(("a", "b"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"models": 3}'])
def test_what_is_no_record_counts_for_nothing(tmp_path: Path, text: str) -> None:
    assert served_record.read(tmp_path) is None
    (tmp_path / RECORD_FILE).write_text(text)
    assert served_record.read(tmp_path) is None

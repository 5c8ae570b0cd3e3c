"""The file that says what is to be served, and what the last change was."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.repository import served_record
from generator.repository.served_record import RECORD_FILE, LastChange, ServedRecord

CHANGE = LastChange(
    {"demo_stream": 3}, {"demo": None, "b": "{}"}, {"c_stream": "[]"}, ("new",), ("old",)
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    record = ServedRecord(("a", "b"), CHANGE)
    served_record.write(tmp_path, record)
    assert served_record.read(tmp_path) == record


def test_naming_the_models_keeps_the_last_change(tmp_path: Path) -> None:
    served_record.write(tmp_path, ServedRecord(("a",), CHANGE))
    served_record.write_models(tmp_path, ["c", "b"])
    assert served_record.read(tmp_path) == ServedRecord(("b", "c"), CHANGE)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"models": 3, "last": {}}'])
def test_what_is_no_record_counts_for_nothing(tmp_path: Path, text: str) -> None:
    assert served_record.read(tmp_path) is None
    (tmp_path / RECORD_FILE).write_text(text)
    assert served_record.read(tmp_path) is None


def test_how_an_apply_ended_is_no_record_of_what_is_served(tmp_path: Path) -> None:
    served_record.note_failed_apply(tmp_path)
    assert served_record.read(tmp_path) is None
    served_record.write_models(tmp_path, ["a"])
    served_record.note_failed_apply(tmp_path)
    record = served_record.read(tmp_path)
    assert record is not None
    assert record.applied is not None
    assert (record.models, record.applied.is_good) == (("a",), False)

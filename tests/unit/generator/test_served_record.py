"""The file that says what is to be served."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_triton.tritonserver.state_file import SERVED_FILE, served_models, write_served


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_served(tmp_path, ["b", "a"])
    assert served_models(tmp_path) == ("a", "b")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"models": 3}'])
def test_what_is_no_record_counts_for_nothing(tmp_path: Path, text: str) -> None:
    assert served_models(tmp_path) is None
    (tmp_path / SERVED_FILE).write_text(text)
    assert served_models(tmp_path) is None

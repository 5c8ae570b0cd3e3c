"""routing.json: what is taken, what is refused, and when it is read again."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hf_triton.runtime.routing.routing_json import (
    Arm,
    RoutingError,
    RoutingFile,
    parse,
)

ARMS = [
    {"name": "stable", "engine": "m", "weight": 99.9},
    {"name": "new", "engine": "m_new", "weight": 0.1},
]
GOOD: dict[str, Any] = {"arms": ARMS, "sticky": "user"}


def test_numbers_are_taken_exactly_as_they_are_written() -> None:
    routing = parse(json.dumps(GOOD).encode())
    assert routing.arms[1] == Arm("new", "m_new", Fraction(1, 10))
    assert routing.sticky == "user"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        json.dumps({**GOOD, "arms": [ARMS[0]]}).encode(),
        json.dumps({**GOOD, "arms": [ARMS[0], {**ARMS[1], "weight": True}]}).encode(),
        json.dumps({**GOOD, "arms": [ARMS[0], {**ARMS[1], "weight": "0.1"}]}).encode(),
        json.dumps(
            {**GOOD, "arms": [{**ARMS[0], "weight": 150}, {**ARMS[1], "weight": -50}]}
        ).encode(),
        json.dumps({**GOOD, "arms": [ARMS[0], {**ARMS[1], "name": "stable"}]}).encode(),
        json.dumps({**GOOD, "arms": [ARMS[0], {**ARMS[1], "engine": ""}]}).encode(),
        json.dumps({**GOOD, "sticky": 1}).encode(),
        json.dumps({**GOOD, "arms": []}).encode(),
        b'{"arms": [{"name": "x", "engine": "x", "weight": 1e99999}], "sticky": null}',
        b'{"arms": [{"name": "x", "engine": "x", "weight": NaN}], "sticky": null}',
    ],
)
def test_garbage_is_an_error_of_the_file(content: bytes) -> None:
    with pytest.raises(RoutingError, match="not what the generator writes"):
        parse(content)


def test_a_file_is_read_again_only_when_its_content_changes(tmp_path: Path) -> None:
    path = tmp_path / "routing.json"
    file = RoutingFile(path)
    assert not file.refresh()
    assert file.read() is None
    path.write_text(json.dumps(GOOD))
    assert file.refresh()
    assert file.read() is not None
    path.write_text(json.dumps(GOOD))
    assert not file.refresh()
    path.unlink()
    assert file.refresh()
    assert file.read() is None


def test_what_can_not_be_read_is_neither_a_change_nor_an_end(tmp_path: Path) -> None:
    file = RoutingFile(tmp_path)
    with pytest.raises(OSError, match="directory"):
        file.refresh()

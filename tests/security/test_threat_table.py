"""docs/security.md names a test for every threat that it says is met, and all of them exist."""

from __future__ import annotations

import re

import pytest

from tests.support.triton import ROOT

TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", TEXT)))
ROWS = [
    line
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| Threat |", "|---"))
]


def test_there_are_threats() -> None:
    assert len(ROWS) > 25
    assert len(NAMED) > 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_each_threat_has_a_defence_and_a_test(row: str) -> None:
    _, threat, defence, tests, _ = row.split("|")
    assert threat.strip()
    assert defence.strip()
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", tests)
    assert tests.count("`") == 2 * len(re.findall(r"::test_\w+`", tests)), "and nothing else"


@pytest.mark.parametrize("file,name", NAMED)
def test_each_test_that_is_named_exists(file: str, name: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^ *(async )?def {name}\(", source, re.MULTILINE), f"{file} has no {name}"

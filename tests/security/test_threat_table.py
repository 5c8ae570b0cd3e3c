"""docs/security.md names a test for every threat that it says is met, and all of them exist."""

from __future__ import annotations

import re

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


def test_each_threat_has_a_defence_and_a_test() -> None:
    for row in ROWS:
        _, threat, defence, tests, _ = row.split("|")
        assert threat.strip(), row
        assert defence.strip(), row
        assert re.search(r"`tests/[\w/]+\.py::test_\w+`", tests), row
        assert tests.count("`") == 2 * len(re.findall(r"::test_\w+`", tests)), f"more in {row}"


def test_each_test_that_is_named_exists() -> None:
    for file, name in NAMED:
        source = (ROOT / file).read_text(encoding="utf-8")
        found = re.search(rf"^ *(async )?def {name}\(", source, re.MULTILINE)
        assert found, f"{file} has no {name}"

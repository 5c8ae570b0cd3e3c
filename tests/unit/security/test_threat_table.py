"""docs/security.md has a defence against every threat, and tests that are marked with its key."""

from __future__ import annotations

import re

import pytest

from tests.support.triton import ROOT

TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = [
    line
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| Threat |", "|---"))
]
KEYS = re.findall(r'<a id="(.*?)"', TEXT)


def test_each_row_has_keys_of_its_own_and_a_defence() -> None:
    whole = re.compile(r'\| (<a id="[a-z0-9-]+"></a>)+[^|]+ \| [^|]+ \|$')
    assert [row for row in ROWS if not whole.match(row)] == []
    assert len(KEYS) == len(set(KEYS)) > 25


def test_each_threat_has_a_test_and_each_mark_a_threat(request: pytest.FixtureRequest) -> None:
    """The threats of the tests that are run, which are all tests unless some were asked for."""
    found = {
        key
        for item in request.session.items
        for mark in item.iter_markers("threat")
        for key in mark.args
    }
    threats = set(KEYS)
    assert found <= threats
    option = request.config.option
    layers = {item.nodeid.split("/")[1] for item in request.session.items}
    if layers >= {"unit", "model", "served", "system"} and not (option.keyword or option.lf):
        assert found == threats

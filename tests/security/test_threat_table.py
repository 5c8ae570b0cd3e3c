"""docs/security.md has a defence against every threat, and tests that are marked with its key."""

from __future__ import annotations

import re

from tests.support.triton import ROOT

TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = [
    line
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| Threat |", "|---"))
]


def test_each_threat_has_a_key_of_its_own_and_a_defence() -> None:
    keys = [re.match(r'\| <a id="([a-z0-9-]+)"></a>[^|]+ \| [^|]+ \|$', row) for row in ROWS]
    assert not [row for row, key in zip(ROWS, keys, strict=True) if key is None]
    assert len({key[1] for key in keys if key}) == len(ROWS) > 25


def test_each_threat_has_a_test_and_each_mark_a_threat() -> None:
    marked = {
        key
        for file in (ROOT / "tests").rglob("*.py")
        for keys in re.findall(
            r"^ *@pytest\.mark\.threat\((.*?)\)\n", file.read_text("utf-8"), re.M | re.S
        )
        for key in re.findall(r'"(.*?)"', keys)
    }
    assert marked == set(re.findall(r'^\| <a id="(.*?)"', TEXT, re.MULTILINE))

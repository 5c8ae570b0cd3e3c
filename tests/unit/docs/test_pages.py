"""Tables of docs/ say what the code says; links, curl lines and names of files are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.triton import ROOT
from tests.unit.docs.tables import DOCS, TABLES, written


@pytest.mark.parametrize("page", TABLES)
def test_a_page_has_the_tables_of_the_code(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert written(page, text) == text, "write it: python -m tests.unit.docs.tables"


BESIDE = [
    page
    for folder in ("", "demo", "perf", "perf/lab", "perf/lab/results")
    for page in sorted((ROOT / folder).glob("*.md"))
]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize("page", BESIDE, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize(
    "page", [*BESIDE, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_curl_lines_that_send_json_say_so(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for command in re.findall(r"^curl .*-d .*$", text, re.MULTILINE):
        assert "-H 'Content-Type: application/json'" in command


def test_the_architecture_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tops = [ROOT, ROOT / "hf_triton"]
    named = set(re.findall(r"`((?:[\w.]+/)+(?:\w+\.py)?)`", text))
    assert len(named) > 20
    assert [path for path in named if not any((top / path).exists() for top in tops)] == []

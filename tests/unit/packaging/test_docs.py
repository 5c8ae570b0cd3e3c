"""What the pages link to is there, the index of docs/ names every page, and curl lines say that
they send JSON."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.triton import ROOT

DOCS = ROOT / "docs"
FOLDERS = ("", "docs", "demo", "perf", "perf/lab", "perf/lab/results")
PAGES = [page for folder in FOLDERS for page in sorted((ROOT / folder).glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)]+)\)")


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link


def test_the_index_names_every_page() -> None:
    named = set(LINK.findall((DOCS / "README.md").read_text(encoding="utf-8")))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_curl_lines_that_send_json_say_so(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for command in re.findall(r"^curl .*-d .*$", text, re.MULTILINE):
        assert "-H 'Content-Type: application/json'" in command


def test_the_architecture_names_files_that_are_there() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    tops = [ROOT, ROOT / "hf_triton"]
    named = set(re.findall(r"`((?:[\w.]+/)+(?:\w+\.py)?)`", text))
    assert len(named) > 20
    assert [path for path in named if not any((top / path).exists() for top in tops)] == []

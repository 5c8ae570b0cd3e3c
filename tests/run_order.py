"""In which order files of tests run, and which of them the same process runs.

Where tests run in several processes, files that share the one server run in one of them, so that
it is started once. They come first, then those with tests that are ``slow`` or start servers of
their own, then those of many tests: what is short fills the end, and processes end together.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

HERE = Path(__file__).parent


class FilesInOrder(LoadFileScheduling):  # type: ignore[misc]
    """Whole files for each process, those of the one server as if they were one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "one server" if shares_the_server(HERE.parent / file) else file


@cache
def shares_the_server(file: Path) -> bool:
    """Whether a file of tests, or a conftest.py of its folders, asks for ``one_server``."""
    folders = [folder for folder in file.parents if HERE in folder.parents]
    candidates = [file, *(folder / "conftest.py" for folder in folders)]
    return any(path.exists() and "one_server" in path.read_text() for path in candidates)


def in_order(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Whole files, the longest first."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    ordered = sorted(files, key=lambda file: (_rank(file, files[file]), -len(files[file])))
    return [item for file in ordered for item in files[file]]


def _rank(file: Path, items: list[pytest.Item]) -> int:
    if shares_the_server(file):
        return 0
    marks = {mark.name for item in items for mark in item.iter_markers()}
    return 1 if marks & {"slow", "server"} else 2

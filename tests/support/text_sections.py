"""Expected texts kept together in one file: before each a line ``=== name``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path


def read_sections(file: Path) -> list[tuple[str, str]]:
    """The names and texts of a file, in its order."""
    parts = re.split(r"^=== (.+)\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert not parts[0], f"{file} begins without a name"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def write_sections(file: Path, sections: Iterable[tuple[str, str]]) -> None:
    """The inverse of ``read_sections``, for texts that end with their last line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"=== {name}\n{text}" for name, text in sections), encoding="utf-8")


def read_tree(file: Path) -> dict[str, str]:
    """A folder's files by their path, each a section."""
    return dict(read_sections(file))


def write_tree(file: Path, tree: Mapping[str, str]) -> None:
    write_sections(file, sorted(tree.items()))

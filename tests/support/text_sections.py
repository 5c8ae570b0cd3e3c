"""Expected texts kept together in one file: before each a line ``=== name``."""

from __future__ import annotations

import difflib
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


def tree_text(tree: Mapping[str, str]) -> str:
    """A folder's files, each a section with its path; of a file that is mostly as one of its name
    before it, only what differs, the names of their models aside.
    """
    whole: list[tuple[str, str]] = []
    sections = []
    for path, text in sorted(tree.items()):
        differing = [
            (_difference(_renamed(other, name, path), text), name)
            for name, other in whole
            if Path(name).name == Path(path).name
        ]
        least, name = min(differing, key=lambda each: len(each[0]), default=([], ""))
        if name and 2 * len(least) < text.count("\n"):
            sections.append(f"=== {path}: as {name} but for\n" + "".join(least))
        else:
            sections.append(f"=== {path}\n{text}")
            whole.append((path, text))
    return "".join(sections)


def _renamed(text: str, before: str, after: str) -> str:
    """As of the model that the file ``after`` is of, by its first folder."""
    old, new = (path.rpartition("/")[0].partition("/")[0] for path in (before, after))
    return text.replace(old, new) if old and new and old not in new and new not in old else text


def _difference(before: str, after: str) -> list[str]:
    """The lines of a unified difference with one around each, without numbers, which all change
    with a line at the top.
    """
    one, other = (text.splitlines(keepends=True) for text in (before, after))
    found = list(difflib.unified_diff(one, other, n=1))[2:]
    return ["@@\n" if line.startswith("@@") else line for line in found]

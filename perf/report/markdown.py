"""Markdown of reports: tables, and texts from outside as plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

_SPECIAL = re.compile(r"([\\`*\[\]<>|#~]|(?<!\w)_|_(?!\w))")  # max_num_seqs stays as it is


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], align: str = "<") -> list[str]:
    """Escapes every cell; ``align`` has ``<`` or ``>`` for each column, further ones go right."""
    rule = "|".join({"<": ":--", ">": "--:"}[side] for side in align.ljust(len(heads), ">"))
    lines = ["| " + " | ".join(map(escaped, row)) + " |" for row in (heads, *rows)]
    return [lines[0], f"|{rule}|", *lines[1:]]


def escaped(text: object) -> str:
    """Joins lines and drops control characters that a terminal would interpret."""
    words = " ".join(str(text).split())
    plain = (each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in words)
    return _SPECIAL.sub(r"\\\1", "".join(plain))


def joined(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in (None, ""))

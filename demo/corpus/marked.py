"""Texts with marked spans, such as ``<city:Oslo>``: the plain text, and where the spans are."""

from __future__ import annotations

import re
from typing import NamedTuple

_MARK = re.compile(r"<(\w+):([^<>]+)>")


class Span(NamedTuple):
    """Characters ``start`` to ``end`` (exclusive) of a text."""

    label: str
    start: int
    end: int


def unmarked(text: str) -> tuple[str, list[Span]]:
    """Return the text without its marks, and where what was marked now stands."""
    plain, spans, position = "", [], 0
    for found in _MARK.finditer(text):
        plain += text[position : found.start()]
        spans.append(Span(found.group(1), len(plain), len(plain) + len(found.group(2))))
        plain += found.group(2)
        position = found.end()
    return plain + text[position:], spans

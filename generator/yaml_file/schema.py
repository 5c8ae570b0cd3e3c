"""Collects and words mistakes in a YAML file. Knows nothing of models or tasks."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass, field

from generator.errors import Problem, mask_tokens
from generator.yaml_file.nodes import Key, Node

_SHOWN = 60
_LISTED = 50  # names: all tasks, keys and options, not a thousand models


@dataclass
class Report:
    problems: list[Problem] = field(default_factory=list)

    def add(self, place: Node | Key, message: str) -> None:
        self.problems.append(Problem(place.line, place.column, place.where, message))


def show(node: Node) -> str:
    """A value as a message quotes it: short, on one line, tokens masked."""
    value = node.value
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = ascii(mask_tokens(value)) if isinstance(value, str) else node.written
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]}...{text[-1]}"


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that a misspelt one most likely means; `-` and `_` and case don't count."""

    def plain(text: str) -> str:
        return text.lower().replace("-", "_")

    by_plain = {plain(candidate): candidate for candidate in known}
    found = difflib.get_close_matches(plain(name[:80]), list(by_plain), n=1)
    return by_plain[found[0]] if found else None


def did_you_mean(name: str, known: Collection[str], what: str) -> str:
    """``; did you mean 'dtype'?`` or, where nothing is near, all that is known."""
    suggestion = nearest(name, known)
    if suggestion is not None:
        return f"; did you mean '{suggestion}'?"
    listed = [*known][:_LISTED]
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"; known {what}: {', '.join(listed) or 'none'}{more}"

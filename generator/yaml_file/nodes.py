"""A YAML document as a tree in which every key and value knows its line and column.

Owns what a plain scalar means (YAML 1.2's core schema: ``no`` and ``2024-01-01`` are text, only
``true`` and ``false`` are booleans) and what of YAML is left out on purpose, each with an error of
its own: aliases and merge keys (``defaults:`` is what they would be for, and an alias bomb needs
them), tags, several documents, keys that are not text, the same key twice. Knows no files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import yaml

from generator.errors import Problem

Scalar: TypeAlias = "str | int | float | bool | None"

MAX_DEPTH = 32
MAX_DIGITS = 100

# https://yaml.org/spec/1.2.2/#1032-tag-resolution
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class Key(NamedTuple):
    """A key of a map, and where it stands."""

    name: str
    line: int
    column: int
    where: str


class Node(NamedTuple):
    """A value, where it stands, its breadcrumb (``models[0].dtype``), and a scalar as written."""

    value: Scalar | list[Node] | dict[Key, Node]
    line: int
    column: int
    where: str = ""
    written: str = ""

    def get(self, name: str) -> Node | None:
        """The value under a key of this map, or None."""
        entries = self.value if isinstance(self.value, dict) else {}
        return next((node for key, node in entries.items() if key.name == name), None)

    @property
    def entries(self) -> dict[str, Node]:
        """The values of this map by key; empty for anything else."""
        entries = self.value if isinstance(self.value, dict) else {}
        return {key.name: node for key, node in entries.items()}

    @property
    def items(self) -> list[Node]:
        """The items of this list; empty for anything else."""
        return self.value if isinstance(self.value, list) else []


def scalars(node: Node) -> Iterator[Node]:
    """Every scalar of the tree, in the file's order."""
    if isinstance(node.value, dict):
        for child in node.value.values():
            yield from scalars(child)
    elif isinstance(node.value, list):
        for child in node.value:
            yield from scalars(child)
    else:
        yield node


class Parser(Protocol):
    """The part of PyYAML's parsers that is used here; their events are untyped."""

    def get_event(self) -> Any:
        """Takes the next event."""

    def peek_event(self) -> Any:
        """The next event, left where it is."""

    def check_event(self, *kinds: type) -> bool:
        """Whether the next event is one of these."""


def build(parser: Parser, problems: list[Problem]) -> Node | None:
    """The only document's root, None where it is empty; mistakes are added to ``problems``."""
    try:
        return _Builder(parser, problems).document()
    except _StopParsingError:
        return None


def _meaning(text: str) -> Scalar:
    """Converts a plain (unquoted) scalar. Raises ValueError for a number that is too long."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise ValueError(f"a number of {len(text)} digits")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return float("nan") if text in (".nan", ".NaN", ".NAN") else text


class _StopParsingError(Exception):
    """The rest of the file can't be understood; its problem is already noted."""


@dataclass
class _Builder:
    """Builds the tree from the parser's events."""

    parser: Parser
    problems: list[Problem]
    depth: int = 0

    def document(self) -> Node | None:
        self.parser.get_event()  # stream start
        if self.parser.check_event(yaml.StreamEndEvent):
            return None
        self.parser.get_event()  # document start
        root = self.node("")
        self.parser.get_event()  # document end
        if not self.parser.check_event(yaml.StreamEndEvent):
            self.stop(self.parser.peek_event(), "", "a second YAML document; one is allowed")
        return None if root.value is None else root

    def node(self, where: str) -> Node:
        event = self.parser.get_event()
        self.refuse_references(event, where)
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event, where)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.stop(event, "", f"nested more than {MAX_DEPTH} deep")
        is_list = isinstance(event, yaml.SequenceStartEvent)
        value = self.sequence(where) if is_list else self.mapping(where)
        self.depth -= 1
        return Node(value, event.start_mark.line + 1, event.start_mark.column + 1, where)

    def scalar(self, event: Any, where: str) -> Node:
        value: Scalar = event.value
        try:
            value = _meaning(event.value) if event.implicit[0] else event.value
        except ValueError as error:
            self.note(event, where, f"got {error}, too long for any key")
        mark = event.start_mark
        return Node(value, mark.line + 1, mark.column + 1, where, event.value)

    def sequence(self, where: str) -> list[Node]:
        items: list[Node] = []
        while not self.parser.check_event(yaml.SequenceEndEvent):
            items.append(self.node(f"{where}[{len(items)}]"))
        self.parser.get_event()
        return items

    def mapping(self, where: str) -> dict[Key, Node]:
        entries: dict[Key, Node] = {}
        first_line: dict[str, int] = {}
        while not self.parser.check_event(yaml.MappingEndEvent):
            key = self.key(where)
            node = self.node(key.where)
            if key.name in first_line:
                line = first_line[key.name]
                self.problems.append(
                    Problem(
                        key.line, key.column, key.where, f"key given twice, first in line {line}"
                    )
                )
            else:
                first_line[key.name] = key.line
                entries[key] = node
        self.parser.get_event()
        return entries

    def key(self, where: str) -> Key:
        event = self.parser.peek_event()
        self.refuse_references(event, where)
        if not isinstance(event, yaml.ScalarEvent):
            self.stop(event, where, "a map's key must be text, got a list or a map")
        node = self.node(where)
        if not isinstance(node.value, str):
            self.note(event, where, f"a map's key must be text, got {event.value!r}; quote it")
        name = str(event.value)
        if name == "<<" and event.implicit[0]:
            self.stop(
                event, where, "merge keys (<<) are not supported; put shared keys in 'defaults:'"
            )
        return Key(name, node.line, node.column, _join(where, name))

    def refuse_references(self, event: Any, where: str) -> None:
        if isinstance(event, yaml.AliasEvent):
            hint = "put shared keys in 'defaults:'"
            self.stop(event, where, f"aliases (*{event.anchor}) are not supported; {hint}")
        if getattr(event, "tag", None):
            self.stop(event, where, f"tags ({event.tag}) are not supported")

    def note(self, event: Any, where: str, message: str) -> None:
        mark = event.start_mark
        self.problems.append(Problem(mark.line + 1, mark.column + 1, where, message))

    def stop(self, event: Any, where: str, message: str) -> None:
        self.note(event, where, message)
        raise _StopParsingError


def _join(where: str, name: str) -> str:
    shown = name if _PLAIN_KEY.fullmatch(name) else f"[{name[:40]!r}]"
    separator = "." if where and shown == name else ""
    return f"{where}{separator}{shown}"

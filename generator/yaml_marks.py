"""YAML as a tree in which every key and value knows its line and column.

Owns the file's bytes, its syntax, and what a plain scalar means (YAML 1.2's core schema: ``no`` and
``2024-01-01`` are text, only ``true`` and ``false`` are booleans). Knows nothing of models. Left out on purpose,
each with an error of its own: aliases and merge keys (``defaults:`` is what they would be for, and an alias bomb
needs them), tags, several documents, keys that are not text, the same key twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from generator.errors import Problem, SpecError

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

# libyaml's own parser where PyYAML was built with it: ten times faster, the same events.
_Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Key:
    """A key of a map, and where it stands."""

    name: str
    line: int
    column: int
    where: str


@dataclass(frozen=True)
class Node:
    """A value, where it stands, and its breadcrumb, such as ``models[0].dtype``."""

    value: Scalar | list[Node] | dict[Key, Node]
    line: int
    column: int
    where: str = ""

    def get(self, name: str) -> Node | None:
        """The value under a key of this map, or None."""
        entries = self.value if isinstance(self.value, dict) else {}
        return next((node for key, node in entries.items() if key.name == name), None)

    def problem(self, message: str) -> Problem:
        return Problem(self.line, self.column, self.where, message)


def read(path: Path, shown: str | None = None) -> Node:
    """The file's only document. Raises SpecError for anything that is not one readable YAML document."""
    shown = shown or str(path)
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        raise SpecError(shown, [Problem(0, 0, "", _unreadable(error))]) from None
    return parse(raw, shown)


def parse(raw: bytes, shown: str) -> Node:
    """The only document in ``raw``; ``shown`` is the file's name in messages. Raises SpecError."""
    text = _decode(raw, shown)
    problems: list[Problem] = []
    try:
        builder = _Builder(_Parser(text), problems)
        root = builder.document()
    except _StopParsing:
        root = None
    except yaml.YAMLError as error:
        problems.append(_syntax_problem(error, text))
        root = None
    if problems:
        raise SpecError(shown, problems)
    if root is None:
        raise SpecError(shown, [Problem(0, 0, "", "is empty; it needs at least 'models:'")])
    return root


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


def _unreadable(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "is a folder, expected a YAML file"
    if isinstance(error, PermissionError):
        return "can't be read: permission denied"
    return f"can't be read: {getattr(error, 'strerror', None) or error}"


def _decode(raw: bytes, shown: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = raw[: error.start].decode("utf-8", errors="replace")
        line, column = good.count("\n") + 1, len(good) - (good.rfind("\n") + 1) + 1
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise SpecError(shown, [Problem(line, column, "", message)]) from None


def _syntax_problem(error: yaml.YAMLError, text: str) -> Problem:
    """The parser's complaint in one line; a tab, its most frequent cause, is named as such."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # the reader: a control character; it has an offset, not a line
        character = _first_control_character(text)
        return character or Problem(0, 0, "", "holds a character that YAML does not allow")
    line, column = mark.line + 1, mark.column + 1
    lines = text.splitlines()
    indent = re.match(r"[ -]*\t", lines[mark.line]) if mark.line < len(lines) else None
    if indent:
        return Problem(line, indent.end(), "", "tab in the indentation; YAML allows only spaces")
    parts = [getattr(error, "context", None), getattr(error, "problem", None)]
    return Problem(line, column, "", "not valid YAML: " + ", ".join(part for part in parts if part))


def _first_control_character(text: str) -> Problem | None:
    # https://yaml.org/spec/1.2.2/#51-character-set
    found = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]", text)
    if not found:
        return None
    before = text[: found.start()]
    line, column = before.count("\n") + 1, found.start() - (before.rfind("\n") + 1) + 1
    message = f"control character U+{ord(found[0]):04X} is not allowed"
    return Problem(line, column, "", message)


def _meaning(text: str) -> Scalar:
    """What a plain (unquoted) scalar means. Raises ValueError for a number too long to be one."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise ValueError(f"a number of {len(text)} digits")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return float("nan") if text in (".nan", ".NaN", ".NAN") else text


class _StopParsing(Exception):
    """The rest of the file can't be understood; its problem is already noted."""


@dataclass
class _Builder:
    """Builds the tree from the parser's events."""

    parser: yaml.SafeLoader
    problems: list[Problem]
    depth: int = field(default=0)

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
        value = (
            self.sequence(where)
            if isinstance(event, yaml.SequenceStartEvent)
            else self.mapping(where)
        )
        self.depth -= 1
        return Node(value, event.start_mark.line + 1, event.start_mark.column + 1, where)

    def scalar(self, event: yaml.ScalarEvent, where: str) -> Node:
        value: Scalar = event.value
        try:
            value = _meaning(event.value) if event.implicit[0] else event.value
        except ValueError as error:
            self.note(event, where, f"got {error}, too long for any key")
        return Node(value, event.start_mark.line + 1, event.start_mark.column + 1, where)

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
                    Problem(key.line, key.column, key.where, f"key given twice, first in line {line}")
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
            self.stop(event, where, "merge keys (<<) are not supported; put shared keys in 'defaults:'")
        return Key(name, node.line, node.column, _join(where, name))

    def refuse_references(self, event: yaml.Event, where: str) -> None:
        if isinstance(event, yaml.AliasEvent):
            hint = "put shared keys in 'defaults:'"
            self.stop(event, where, f"aliases (*{event.anchor}) are not supported; {hint}")
        if getattr(event, "tag", None):
            self.stop(event, where, f"tags ({event.tag}) are not supported")

    def note(self, event: yaml.Event, where: str, message: str) -> None:
        mark = event.start_mark
        self.problems.append(Problem(mark.line + 1, mark.column + 1, where, message))

    def stop(self, event: yaml.Event, where: str, message: str) -> None:
        self.note(event, where, message)
        raise _StopParsing


def _join(where: str, name: str) -> str:
    shown = name if _PLAIN_KEY.fullmatch(name) else f"[{name[:40]!r}]"
    separator = "." if where and shown == name else ""
    return f"{where}{separator}{shown}"

"""A YAML document as a tree in which every key and value knows its line and column. Plain scalars
follow YAML 1.2's core schema: ``no`` and ``2024-01-01`` are text. Aliases (an alias bomb needs
them), merge keys, tags, several documents and duplicate keys are refused. Collects and words
mistakes at such places. Knows nothing of models or tasks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from generator.errors import Problem, SpecError, mask_tokens
from hf_triton.runtime.regular_file import read_regular

Scalar: TypeAlias = "str | int | float | bool | None"

MOST_BYTES = 4 * 2**20  # some seconds to read; 5,000 models take 0.7 MB
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
# https://yaml.org/spec/1.2.2/#51-character-set
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
# libyaml's own parser where PyYAML was built with it: ten times faster, the same events.
_Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REASONS: dict[type[OSError], str] = {
    FileNotFoundError: "no such file",
    IsADirectoryError: "is a folder, expected a YAML file",
    PermissionError: "can't be read: permission denied",
}
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SHOWN = 60
_LISTED = 50  # names: all tasks, keys and options, not a thousand models


class Key(NamedTuple):
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
        entries = self.value if isinstance(self.value, dict) else {}
        return next((node for key, node in entries.items() if key.name == name), None)

    @property
    def entries(self) -> dict[str, Node]:
        entries = self.value if isinstance(self.value, dict) else {}
        return {key.name: node for key, node in entries.items()}

    @property
    def items(self) -> list[Node]:
        return self.value if isinstance(self.value, list) else []


def scalars(node: Node) -> Iterator[Node]:
    if isinstance(node.value, dict):
        for child in node.value.values():
            yield from scalars(child)
    elif isinstance(node.value, list):
        for child in node.value:
            yield from scalars(child)
    else:
        yield node


def _parse_scalar(text: str) -> Scalar:
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
    parser: Any  # PyYAML's: its events are untyped
    problems: list[Problem]
    depth: int = 0

    def document(self) -> Node | None:
        self.parser.get_event()  # stream start
        if self.parser.check_event(yaml.StreamEndEvent):
            return None
        self.parser.get_event()  # document start
        root = self.node(self.parser.get_event(), "")
        self.parser.get_event()  # document end
        if not self.parser.check_event(yaml.StreamEndEvent):
            self.stop(self.parser.peek_event(), "", "a second YAML document; one is allowed")
        return None if root.value is None else root

    def node(self, event: Any, where: str) -> Node:
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
            value = _parse_scalar(event.value) if event.implicit[0] else event.value
        except ValueError as error:
            self.note(event, where, f"got {error}, too long for any key")
        mark = event.start_mark
        return Node(value, mark.line + 1, mark.column + 1, where, event.value)

    def sequence(self, where: str) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := self.parser.get_event(), yaml.SequenceEndEvent):
            items.append(self.node(event, f"{where}[{len(items)}]"))
        return items

    def mapping(self, where: str) -> dict[Key, Node]:
        entries: dict[Key, Node] = {}
        first_line: dict[str, int] = {}
        while not isinstance(event := self.parser.get_event(), yaml.MappingEndEvent):
            key = self.key(event, where)
            node = self.node(self.parser.get_event(), key.where)
            if key.name in first_line:
                line = first_line[key.name]
                twice = f"key given twice, first in line {line}"
                self.problems.append(Problem(key.line, key.column, key.where, twice))
            else:
                first_line[key.name] = key.line
                entries[key] = node
        return entries

    def key(self, event: Any, where: str) -> Key:
        self.refuse_references(event, where)
        if not isinstance(event, yaml.ScalarEvent):
            self.stop(event, where, "a map's key must be text, got a list or a map")
        node = self.scalar(event, where)
        if not isinstance(node.value, str):
            self.note(event, where, f"a map's key must be text, got {event.value!r}; quote it")
        name = str(event.value)
        if name == "<<" and event.implicit[0]:
            hint = "put shared keys in 'defaults:'"
            self.stop(event, where, f"merge keys (<<) are not supported; {hint}")
        shown = name if _PLAIN_KEY.fullmatch(name) else f"[{name[:40]!r}]"
        separator = "." if where and shown == name else ""
        return Key(name, node.line, node.column, f"{where}{separator}{shown}")

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


def read(path: Path, needs: str = "models:", most_bytes: int = MOST_BYTES) -> Node:
    """Raises SpecError for anything but one YAML document of at most ``most_bytes``; an empty one
    is told that it ``needs`` a key.
    """
    shown = str(path)
    try:
        raw = read_regular(path, most_bytes)
    except OSError as error:
        reason = _REASONS.get(type(error), f"can't be read: {error.strerror}")
        raise SpecError(shown, [Problem(0, 0, "", reason)]) from None
    return parse(raw, shown, needs)


def parse(raw: bytes, shown: str, needs: str = "models:") -> Node:
    """The only document in ``raw``; ``shown`` is the file's name in messages. Raises SpecError."""
    problems: list[Problem] = []
    root, text = None, ""
    try:
        text = raw.decode("utf-8-sig")
        root = _Builder(_Parser(text), problems).document()
    except UnicodeDecodeError as error:
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        problems.append(_problem(raw[: error.start].decode("utf-8", "replace"), message))
    except yaml.YAMLError as error:
        problems.append(_syntax_problem(error, text))
    except _StopParsingError:
        pass
    if not problems and root is None:
        problems.append(Problem(0, 0, "", f"is empty; it needs at least '{needs}'"))
    if problems or root is None:
        raise SpecError(shown, problems)
    return root


def _problem(before: str, message: str) -> Problem:
    return Problem(before.count("\n") + 1, len(before) - before.rfind("\n"), "", message)


def _syntax_problem(error: yaml.YAMLError, text: str) -> Problem:
    """The parser's complaint in one line; a tab, its most frequent cause, is named as such."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # the reader: a control character; it has an offset, not a line
        if found := _CONTROL.search(text):
            message = f"control character U+{ord(found[0]):04X} is not allowed"
            return _problem(text[: found.start()], message)
        return Problem(0, 0, "", "holds a character that YAML does not allow")
    line, column = mark.line + 1, mark.column + 1
    lines = text.splitlines()
    indent = re.match(r"[ -]*\t", lines[mark.line]) if mark.line < len(lines) else None
    if indent:
        return Problem(line, indent.end(), "", "tab in the indentation; YAML allows only spaces")
    parts = [getattr(error, "context", None), getattr(error, "problem", None)]
    return Problem(line, column, "", "not valid YAML: " + ", ".join(part for part in parts if part))


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

"""Reads one YAML file: decodes it, parses it, and words the parser's errors for a user.

Knows nothing of models; nodes.py decides what YAML's scalars mean.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from generator.errors import Problem, SpecError
from generator.yaml_file.nodes import Node, build
from generator.yaml_file.regular_file import read_regular

MOST_BYTES = 4 * 2**20  # some seconds to read; 5,000 models take 0.7 MB
# libyaml's own parser where PyYAML was built with it: ten times faster, the same events.
_Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(path: Path, needs: str = "models:", most_bytes: int = MOST_BYTES) -> Node:
    """The file's only document. Raises SpecError for anything but one readable YAML document of at
    most ``most_bytes``; an empty one is told that it ``needs`` a key.
    """
    shown = str(path)
    try:
        raw = read_regular(path, most_bytes)
    except OSError as error:
        raise SpecError(shown, [Problem(0, 0, "", _unreadable(error))]) from None
    return parse(raw, shown, needs)


def parse(raw: bytes, shown: str, needs: str = "models:") -> Node:
    """The only document in ``raw``; ``shown`` is the file's name in messages. Raises SpecError."""
    text = _decode(raw, shown)
    problems: list[Problem] = []
    root = None
    try:
        root = build(_Parser(text), problems)
    except yaml.YAMLError as error:
        problems.append(_syntax_problem(error, text))
    if problems:
        raise SpecError(shown, problems)
    if root is None:
        raise SpecError(shown, [Problem(0, 0, "", f"is empty; it needs at least '{needs}'")])
    return root


def _unreadable(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "is a folder, expected a YAML file"
    if isinstance(error, PermissionError):
        return "can't be read: permission denied"
    return f"can't be read: {error.strerror}"


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

"""A list of calls as Python would write it, whose names need be none of Python's: ``from``,
``get-weather``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from hf_triton.ports.openai.tool_calls.json_values import escape_backslashes

_NAME = r"[^\s()\[\]{},=:'\"*]{1,128}"
BEGIN = re.compile(rf"\[\s*(?:(?P<name>{_NAME})\s*)?(?:(?P<is_call>\()|$)")
_CALL = re.compile(rf"[\s,]*(?P<call>{_NAME}\s*\()")
_END = re.compile(r"[\s,]*\]")
_MARK = re.compile(r"\\.|\"\"\"|'''|[\"'()\[\]{}]", re.DOTALL)
_TEXT = r"\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
_TEXT_OR_NAME = re.compile(rf"(?P<text>{_TEXT})|(?P<name>{_NAME})(?=\s*(?:\(|=(?!=)))", re.DOTALL)
# A backslash that begins no escape of Python's matches with a group.
_ESCAPE = re.compile(
    r"\\(?:[\n\\'\"abfnrtv0-7]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|())"
)
_LINE_ENDS = {"\n": r"\n", "\r": r"\r"}
_CONSTANTS = {"true": True, "false": False, "null": None}


def end_of_brackets(text: str, begin: int) -> int | None:
    """Where brackets that begin there are closed; None where they are not yet."""
    depth, quote = 0, ""
    for mark in _MARK.finditer(text, begin):
        found = mark[0]
        if quote or found[0] in "\"'":
            quote = "" if found == quote else quote or found
        elif found in "([{":
            depth += 1
        elif found in ")]}":
            depth -= 1
        if depth == 0 and not quote:
            return mark.end()
    return None


def python_calls(text: str) -> Iterator[tuple[str, Any, str]]:
    """The name, the arguments and the text of each call in a list of them; no arguments of a call
    that can't be read. Raises ValueError for anything else.
    """
    at = 1
    while begin := _CALL.match(text, at):
        at = end_of_brackets(text, begin.end() - 1) or len(text)
        source = text[begin.start("call") : at]
        yield source[: source.index("(")].strip(), _arguments(source), source
    if not _END.fullmatch(text, at):
        raise ValueError("no list of calls")


def _arguments(source: str) -> dict[str, Any] | None:
    names: list[str] = []

    def plain(found: re.Match[str]) -> str:
        if found["text"]:
            text = escape_backslashes(found["text"], _ESCAPE)
            return text if text[:3] in ('"""', "'''") else re.sub(r"[\n\r]", _line_end, text)
        names.append(found["name"])
        return f"_{len(names) - 1}"

    try:
        call = ast.parse(_TEXT_OR_NAME.sub(plain, source), mode="eval").body
        return _values(call, names)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _line_end(found: re.Match[str]) -> str:
    return _LINE_ENDS[found[0]]


def _values(call: ast.expr, names: list[str]) -> dict[str, Any]:
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("no call by names")
    found: dict[str, Any] = {}
    for one in call.keywords:
        value = ast.literal_eval(_Constants().visit(one.value))
        more = {names[int(one.arg[1:])]: value} if one.arg else dict(value)
        if found.keys() & more:
            raise ValueError("a name twice")
        found.update(more)
    return found


class _Constants(ast.NodeTransformer):
    """JSON's names as Python's constants."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_CONSTANTS[node.id]) if node.id in _CONSTANTS else node

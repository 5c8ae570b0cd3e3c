"""JSON as models write it, with line ends inside of texts and escapes that JSON does not know; and
lists of calls as Python would write them, whose names need be none of Python's: ``from``,
``get-weather``.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

# A backslash that begins no escape of JSON's matches with a group.
_JSON_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|())')
_NAME = r"[^\s()\[\]{},=:'\"*]{1,128}"
BEGIN_OF_PYTHON = re.compile(rf"\[\s*(?:(?P<name>{_NAME})\s*)?(?:(?P<is_call>\()|$)")
_CALL = re.compile(rf"[\s,]*(?P<call>{_NAME}\s*\()")
_END = re.compile(r"[\s,]*\]")
_MARK = re.compile(r"\\.|\"\"\"|'''|[\"'()\[\]{}]", re.DOTALL)
_TEXT = r"\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
_TEXT_OR_NAME = re.compile(rf"(?P<text>{_TEXT})|(?P<name>{_NAME})(?=\s*(?:\(|=(?!=)))", re.DOTALL)
# A backslash that begins no escape of Python's matches with a group.
_PYTHON_ESCAPE = re.compile(
    r"\\(?:[\n\\'\"abfnrtv0-7]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|())"
)
_CONSTANTS = {"true": True, "false": False, "null": None}
_SPACE = re.compile(r"\s*")
_LARGEST = sys.float_info.max


def _number(text: str) -> float:
    """JSON has no infinity to write down again."""
    return max(-_LARGEST, min(float(text), _LARGEST))


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Without ``strict``, texts may hold line ends.
_decode = json.JSONDecoder(parse_float=_number, parse_constant=_no_number, strict=False).raw_decode


def decode(text: str, begin: int = 0) -> tuple[Any, int]:
    """A JSON value after white space, and where it ends. Backslashes of unknown escapes stand for
    themselves. Raises ValueError, RecursionError.
    """
    begin = after_space(text, begin)
    try:
        return _decode(text, begin)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Invalid \\"):
            raise
    text = text[begin:]
    bad = [found.start() for found in _JSON_ESCAPE.finditer(text) if found.lastindex]
    value, end = _decode(escape_backslashes(text, _JSON_ESCAPE), 0)
    return value, begin + end - sum(at + number < end for number, at in enumerate(bad))


def escape_backslashes(text: str, escape: re.Pattern[str]) -> str:
    """Doubles the backslashes that ``escape`` matches with a group."""
    return escape.sub(lambda found: "\\\\" if found.lastindex else found[0], text)


def after_space(text: str, begin: int) -> int:
    found = _SPACE.match(text, begin)
    return found.end() if found else begin


def as_json(arguments: Any) -> str | None:
    """The JSON of a call's arguments, which a model may have written as a text; None if it is no
    object. Half of a surrogate pair, which is no Unicode, stays an escape.
    """
    try:
        found = decode_whole(arguments or "{}") if isinstance(arguments, str) else arguments
        if not isinstance(found, dict):
            return None
        text = json.dumps(found, ensure_ascii=False, allow_nan=False)
        text.encode()
        return text
    except UnicodeEncodeError:
        return json.dumps(found)
    except (TypeError, ValueError, RecursionError):
        return None


def decode_whole(text: str) -> Any:
    value, end = decode(text)
    if after_space(text, end) < len(text):
        raise ValueError("more than one value")
    return value


def end_of_brackets(text: str, begin: int) -> int | None:
    """The index after the bracket that closes the one at ``begin``; None if it is still open."""
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
    """Name, arguments (None where unreadable) and text of each call. Raises ValueError."""
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
            text = escape_backslashes(found["text"], _PYTHON_ESCAPE)
            return (
                text
                if text[:3] in ('"""', "'''")
                else text.replace("\n", r"\n").replace("\r", r"\r")
            )
        names.append(found["name"])
        return f"_{len(names) - 1}"

    try:
        call = ast.parse(_TEXT_OR_NAME.sub(plain, source), mode="eval").body
        return _values(call, names)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


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
    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_CONSTANTS[node.id]) if node.id in _CONSTANTS else node

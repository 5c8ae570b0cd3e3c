"""One call of a tool, or a list of them, in the form that the model's family writes.

The forms are data (hf_runtime/request/chat_formats.py). A text is a call only where it names a
tool that the request has, with arguments that are a JSON object; any other stays text.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from generator.openai_api.schema.tools import Tools
from generator.spec.runtime_rules import MAX_HEAD, ToolForm

# JSON that can't be a call, told by how it begins: its first name, or what a list holds.
_NO_CALL = re.compile(
    r'(?:\[\s*)?\{\s*(?:"(?!(?:name|arguments|parameters|type|id)")[^"]*"\s*:|[^\s"])|\[\s*[^\s{]'
)
_PYTHON = re.compile(r"\[\s*(?:[A-Za-z_][\w.]*\s*)?(?:(?P<is_call>\()|$)")
_PYTHON_MARK = re.compile(r"\\.|[\"'()\[\]{}]", re.DOTALL)
_PYTHON_NAMES = {"true": True, "false": False, "null": None}
# Of text that ends within a literal or an escape, JSON's decoder finds fault a little before.
_HALF = 8
_LARGEST = sys.float_info.max


def _number(text: str) -> float:
    """JSON has no infinity to write down again."""
    return max(-_LARGEST, min(float(text), _LARGEST))


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decode = json.JSONDecoder(parse_float=_number, parse_constant=_no_number).raw_decode


@dataclass(frozen=True)
class Found:
    """The names and the arguments' JSON of the calls in a text up to ``end``; where there are none,
    it is no call up to there.
    """

    calls: Sequence[tuple[str, str]]
    end: int


class CallForm:
    """Reads calls of ``tools`` in one form."""

    def __init__(self, form: ToolForm, tools: Tools) -> None:
        self._form, self._tools = form, tools
        self._head = re.compile(form.head) if form.head else None
        self._parameter = re.compile(form.parameter, re.DOTALL)

    def read(self, text: str, begin: int, *, ends: bool) -> Found | None:
        """What stands at ``begin``, after any mark; None where more text may make it a call."""
        if self._form.is_python and (found := _PYTHON.match(text, begin)):
            return self._read_python(text, begin, ends=ends) if found["is_call"] or ends else None
        if text[begin : begin + 1] in ("{", "["):
            return self._read_json(text, begin, ends=ends)
        if self._head is None:
            return Found((), begin)
        head = self._head.match(text, begin)
        if head is None:
            waits = not ends and len(text) - begin < MAX_HEAD
            return None if waits else Found((), begin)
        read = self._read_parameters if self._form.parameter else self._read_arguments
        return read(text, head["name"], head.end(), ends=ends)

    def _read_json(self, text: str, begin: int, *, ends: bool) -> Found | None:
        if _NO_CALL.match(text, begin):
            return Found((), begin)
        decoded = _decoded(text, begin, ends=ends)
        if not isinstance(decoded, tuple):
            return decoded
        value, end = decoded
        calls = [_named(one) for one in (value if isinstance(value, list) else [value])]
        return self._found(calls, end)

    def _read_arguments(self, text: str, name: str, begin: int, *, ends: bool) -> Found | None:
        decoded = _decoded(text, begin, ends=ends)
        if not isinstance(decoded, tuple):
            return decoded
        return self._found([(name, decoded[0])], decoded[1])

    def _read_parameters(self, text: str, name: str, begin: int, *, ends: bool) -> Found | None:
        found = [at for mark in self._form.ends if (at := text.find(mark, begin)) >= 0]
        if not found:
            return Found((), begin) if ends else None
        types = self._tools.types_of(name)
        arguments = {
            one["key"]: _typed(one["value"], types.get(one["key"]))
            for one in self._parameter.finditer(text, begin, min(found))
        }
        return self._found([(name, arguments)], min(found))

    def _read_python(self, text: str, begin: int, *, ends: bool) -> Found | None:
        end = _end_of_brackets(text, begin)
        if end is None:
            return Found((), begin + 1) if ends else None
        try:
            return self._found(list(_python_calls(text[begin:end])), end)
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return Found((), begin + 1)

    def _found(self, calls: Sequence[tuple[str, Any] | None], end: int) -> Found:
        """The calls, if all of them are."""
        found = [
            (call[0], _as_json(call[1]))
            for call in calls
            if call and call[0] in self._tools.names and isinstance(call[1], dict)
        ]
        return Found(found if len(found) == len(calls) else (), end)


def _decoded(text: str, begin: int, *, ends: bool) -> tuple[Any, int] | Found | None:
    """A JSON value and where it ends; else what ``CallForm.read`` says of it."""
    try:
        value, end = _decode(text, begin)
    except json.JSONDecodeError as error:
        may_go_on = not ends and _may_go_on(error, text)
        return None if may_go_on else Found((), begin + 1)
    except (RecursionError, ValueError):  # too deep, NaN, an integer of too many digits
        return Found((), begin + 1)
    return value, end


def _may_go_on(error: json.JSONDecodeError, text: str) -> bool:
    """Whether JSON that is not valid may only be unfinished."""
    return error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip()) - _HALF


def _named(value: Any) -> tuple[str, Any] | None:
    """A call's name and its arguments; None of what has no name."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return None
    return name, value.get("arguments", value.get("parameters", {}))


def _typed(text: str, kind: Any) -> Any:
    """A parameter's value: a text where its schema says so, else JSON where it is."""
    if kind == "string":
        return text
    try:
        return json.loads(text, parse_float=_number, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _as_json(arguments: Any) -> str:
    """Half of a surrogate pair, which is no Unicode, stays an escape."""
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() or _is_unicode(text) else json.dumps(arguments)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _end_of_brackets(text: str, begin: int) -> int | None:
    """Where Python's brackets that begin there are closed; None where they are not yet."""
    depth, quote = 0, ""
    for mark in _PYTHON_MARK.finditer(text, begin):
        found = mark[0]
        if quote or found in "\"'":
            quote = "" if found == quote else quote or found
        elif found in "([{":
            depth += 1
        elif found in ")]}":
            depth -= 1
        if depth == 0 and not quote:
            return mark.end()
    return None


def _python_calls(text: str) -> Iterator[tuple[str, Any]]:
    """The calls of a list of them. Raises ValueError or SyntaxError for anything else."""
    listed = ast.parse(text, mode="eval").body
    for call in listed.elts if isinstance(listed, ast.List) else ():
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("no call by names")
        values = {
            one.arg or "": ast.literal_eval(_Names().visit(one.value)) for one in call.keywords
        }
        yield ast.unparse(call.func), values


class _Names(ast.NodeTransformer):
    """JSON's names as Python's constants."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_PYTHON_NAMES[node.id]) if node.id in _PYTHON_NAMES else node

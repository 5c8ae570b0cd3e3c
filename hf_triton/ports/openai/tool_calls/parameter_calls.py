"""Calls whose arguments are parameters between marks, in forms in which nothing escapes a mark.

A call begins with its tool's name and ends with an end mark; white space alone stands between its
parameters. A value may hold marks, whole calls too, as long as each has its counterpart in it.
What can't be read stays text, with all that follows, which could be within a value: a text that
ends its own call could begin another, which the model has not made.

Values have the types of the tool's JSON schema. A text stays a text where the schema takes texts
and nothing else that it could be. ``null`` is null where the schema takes null, beside texts too:
that is what models mean by it.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cached_property, reduce
from itertools import islice
from operator import and_, or_
from typing import Any, NamedTuple

from hf_triton.ports.openai.schema.tools import Tools
from hf_triton.ports.openai.tool_calls.written_values import after_space, decode, decode_whole
from hf_triton.text_generation.request.chat_formats import ToolForm

# That are looked at in an answer, which is read again after each call that can't be read.
_MOST_MARKS = 200_000
_BEGIN_OF = {"close": "key", "end": "call"}

Types = frozenset[str]
ANY: Types = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_NUMBERS = frozenset(("number", "integer"))
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_OF_CLASS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_DEEPEST = 32  # what a schema says further within is not looked at
_JOINING = {"anyOf": or_, "oneOf": or_, "allOf": and_}


class _Mark(NamedTuple):
    """``kind``: ``call`` begins one, ``key`` a parameter, and ``close`` ends it; ``end`` ends a
    call. ``follows`` where only white space stands before it since the last mark.
    """

    kind: str
    name: str
    begin: int
    end: int
    follows: bool


class _BrokenError(Exception):
    """A call that can't be read."""


class ParameterCalls:
    """Reads the calls of one answer."""

    def __init__(self, form: ToolForm, tools: Tools) -> None:
        self._around, self._listed = form.around, tools.listed
        begins, ends = ("|".join(map(re.escape, marks)) for marks in (form.begins, form.ends))
        self._pattern = re.compile(
            rf"(?P<call>(?:(?:{begins})\s*)+{form.head})|(?P<parameter>{form.parameter})"
            rf"|(?P<close>{form.parameter_end})|(?P<end>(?:{ends})(?:\s*(?:{ends}))*)",
            re.DOTALL,
        )
        self._marks_left = _MOST_MARKS

    @cached_property
    def _tools(self) -> dict[str, dict[str, Types]]:
        """The types of each tool's parameters."""
        functions = [tool["function"] for tool in self._listed]
        return {one["name"]: types_of(one) for one in functions}

    def read(self, text: str, begin: int) -> tuple[list[tuple[str, dict[str, Any]]], int]:
        """The calls that stand at ``begin``, and their end; without any, the end of the text that
        is no call.
        """
        marks = list(islice(self._marks(text, begin), self._marks_left))
        self._marks_left -= len(marks)
        calls, at, end = list[tuple[str, dict[str, Any]]](), 0, len(text)
        goes_on = True
        while self._marks_left and at < len(marks) and marks[at].kind == "call":
            call = marks[at]
            try:
                arguments, at = self._call(text, marks, at)
            except _BrokenError:
                return calls, end
            if goes_on:
                goes_on = call.name in self._tools and (call.follows or not calls)
                end = marks[at - 1].end if goes_on or not calls else end
                calls += [(call.name, arguments)] if goes_on else []
        if not self._marks_left or any(mark.kind != "key" for mark in marks[at:]):
            return [], len(text)
        return calls, end

    def _marks(self, text: str, end: int) -> Iterator[_Mark]:
        for mark in self._pattern.finditer(text, end):
            kind = "key" if mark.lastgroup == "parameter" else str(mark.lastgroup)
            follows = after_space(text, end) >= mark.start()
            yield _Mark(kind, mark["name"] or mark["key"] or "", *mark.span(), follows)
            end = mark.end()

    def _call(self, text: str, marks: list[_Mark], at: int) -> tuple[dict[str, Any], int]:
        """The arguments of the call at a mark, and the mark after it. Raises _BrokenError."""
        types, arguments = self._tools.get(marks[at].name, {}), dict[str, Any]()
        at += 1
        is_next = at < len(marks) and marks[at].follows
        while is_next and marks[at].kind == "key" and marks[at].name not in arguments:
            key = marks[at]
            of_key = types.get(key.name, ANY)
            end = _end_of_text(marks, at) if "string" in of_key else _end_of_json(text, marks, at)
            is_closed = marks[end].kind == "close"
            value = text[key.end : marks[end].begin].removesuffix("" if is_closed else "\n")
            value = value.removeprefix(self._around).removesuffix(self._around)
            arguments[key.name] = typed(value, of_key)
            at = end + is_closed
            is_next = at < len(marks) and (marks[at].follows or not is_closed)
        if not is_next or marks[at].kind != "end":
            raise _BrokenError
        return arguments, at + 1


def _end_of_text(marks: list[_Mark], at: int) -> int:
    """The mark that ends the text of a parameter, which begins with a mark: its call's where its
    own is left out, and the text has none. Raises _BrokenError.
    """
    is_open: list[str] = []
    for place in range(at + 1, len(marks)):
        kind = marks[place].kind
        if kind in ("call", "key"):
            is_open.append(kind)
        elif not is_open and (kind == "close" or place == at + 1):
            return place
        elif not is_open or is_open.pop() != _BEGIN_OF[kind]:
            break
    raise _BrokenError


def _end_of_json(text: str, marks: list[_Mark], at: int) -> int:
    """The mark that ends a value of another type, after its JSON, whose texts may hold marks."""
    begin, found = marks[at].end, at + 1
    if text.startswith(("{", "["), after_space(text, begin)):
        with contextlib.suppress(ValueError, RecursionError):
            end = after_space(text, decode(text, begin)[1])
            found = bisect_left(marks, end, key=lambda mark: mark.begin)
            found = found if found < len(marks) and marks[found].begin == end else at + 1
    if found == len(marks) or marks[found].kind == "call":
        raise _BrokenError
    return found


def typed(text: str, types: Types) -> Any:
    """A parameter's value as its schema has it; what is not of its types as JSON, or as text."""
    found = text.strip()
    try:
        value = decode_whole(_PYTHON.get(found, found))
    except (ValueError, RecursionError):
        return text
    is_of_types = _type_of(value) in types - {"string"}
    return value if is_of_types or "string" not in types else text


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return _OF_CLASS.get(type(value), "object")


def types_of(function: Mapping[str, Any]) -> dict[str, Types]:
    """The types of each parameter that a function's JSON schema names."""
    root = function.get("parameters") or {}
    referred: dict[str, Types] = {}

    def types(schema: Any, depth: int = 0) -> Types:
        """The types of the values that a schema takes, as far as it says them."""
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return ANY
        found, to = _named(schema), schema.get("$ref")
        if isinstance(to, str):
            if to not in referred:
                referred[to] = ANY  # where it refers to itself
                group, _, own = to.removeprefix("#/").partition("/")
                referred[to] = types(_object(root.get(group)).get(own), depth + 1)
            found &= referred[to]
        for name, join in _JOINING.items():
            listed = schema[name] if isinstance(schema.get(name), list) else ()
            if kinds := [types(one, depth + 1) for one in listed]:
                found &= reduce(join, kinds)
        return found | {"null"} if schema.get("nullable") is True else found

    return {name: types(one) for name, one in _object(root.get("properties")).items()}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _named(schema: Mapping[str, Any]) -> Types:
    """The types that a schema itself names, or its values have."""
    found = ANY
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        found = ANY.intersection(kind for kind in kinds if isinstance(kind, str)) or ANY
        found = found | _NUMBERS if "number" in found else found
    if isinstance(schema.get("enum"), list):
        found &= {_type_of(value) for value in schema["enum"]}
    return found & {_type_of(schema["const"])} if "const" in schema else found

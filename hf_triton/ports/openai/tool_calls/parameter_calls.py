"""Calls whose arguments are parameters between marks, in forms in which nothing escapes a mark.

A value may hold any text, that of marks too, so only a whole answer says what a mark means. Of all
readings as a sequence of calls, the one with the fewest faults is taken; of these the one with the
fewest marks in values that have no counterpart in the same value; of these the one with the fewest
marks in values.

A call begins with its tool's name and ends with an end mark. A parameter ends with its own end
mark, before another parameter of the tool that the call has not had yet, or before the call's end.
After a call no end mark stands that is none of a call's. White space between marks means nothing:
models differ in it. Faults are a parameter that its tool does not know, a required one that is
missing, and an end mark of a parameter that is left out. A call that breaks off stays text, and
with it all that follows if that could be within a parameter; so does everything where there is no
such reading.

One text has two readings where a value holds its own end, and then the beginning of a parameter
that the call has not had, or the call's end and the beginning of another: it is read as these.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cached_property
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from generator.spec.runtime_rules import ToolForm
from hf_triton.ports.openai.schema.tools import Tools
from hf_triton.ports.openai.tool_calls.json_values import after_space, decode
from hf_triton.ports.openai.tool_calls.parameter_types import ANY, Parameters, parameters_of, typed

# Steps of a reading, all readings of an answer together: some 0.2 s. An ordinary call takes ten.
_MAX_STEPS = 10_000
_CHARACTERS_A_STEP = 1000  # of JSON that is decoded to find its end
_BREAKS_OFF = 100  # faults
_DEEPEST = 20  # calls and parameters within each other in a value


class ReadCall(NamedTuple):
    """A call and where it stands; without arguments where it stays text."""

    name: str
    arguments: dict[str, Any] | None
    begin: int
    end: int


class _Mark(NamedTuple):
    """``kind``: ``call`` begins one, ``key`` a parameter, and ``close`` ends it; ``end`` ends a
    call. ``follows`` where only white space stands before it since the last mark.
    """

    kind: str
    name: str
    begin: int
    end: int
    follows: bool


class _State(NamedTuple):
    """What stands before a mark: ``after`` a call, ``within`` one, or a ``value``; ``last`` where a
    value can't go on after it. ``given`` are the parameters of a call that it has had, and ``open``
    what began in the value and has not ended there: ``c`` for calls, ``k`` for parameters.
    """

    at: int
    place: str
    tool: str = ""
    given: frozenset[str] = frozenset()
    open: str = ""


class _Step(NamedTuple):
    """What a mark is read as."""

    kind: str
    at: int


# What it costs (faults, marks in values without a counterpart, all marks in values), what is
# reached, and by what.
_Cost = tuple[int, int, int]
_Edge = tuple[_Cost, _State, _Step | None]
_NONE = (0, 0, 0)
_READ = _State(-1, "after")


class ParameterCalls:
    """Reads the calls of one answer."""

    def __init__(self, form: ToolForm, tools: Tools) -> None:
        self._form, self._listed = form, tools.listed
        self._mark = re.compile(_pattern(form), re.DOTALL)
        self._steps_left = _MAX_STEPS

    @cached_property
    def _tools(self) -> Mapping[str, Parameters]:
        functions = [tool["function"] for tool in self._listed]
        return {one["name"]: parameters_of(one) for one in functions}

    def read(self, text: str) -> list[ReadCall]:
        """The calls of the rest of an answer, which begins with one; none where that can't be."""
        marks = _marks(self._mark, text)
        if not marks or marks[0].kind != "call":
            return []
        return list(self._calls(text, marks, self._best(_Readings(text, marks, self._tools))))

    def _best(self, readings: _Readings) -> list[_Step]:
        """The steps of the best reading."""
        order, first = count(), _State(0, "after")
        waiting: list[Any] = [(_NONE, next(order), first, None)]
        seen: set[_State] = set()
        while waiting and len(seen) + readings.cost < self._steps_left:
            cost, _, state, path = heappop(waiting)
            if state == _READ:
                self._steps_left -= len(seen) + readings.cost
                return _unlinked(path)
            if state in seen:
                continue
            seen.add(state)
            for more, reached, step in readings.edges(state):
                linked = (step, path) if step else path
                heappush(waiting, (_sum(cost, more), next(order), reached, linked))
        self._steps_left -= len(seen) + readings.cost
        return []

    def _calls(self, text: str, marks: list[_Mark], steps: list[_Step]) -> Iterator[ReadCall]:
        name, key, arguments = "", "", dict[str, Any]()
        begin = at_call = 0
        for kind, at in steps:
            mark = marks[at] if at < len(marks) else None
            end = len(text) if mark is None else mark.begin
            if kind == "broken":
                yield ReadCall("", None, at_call, end)
            elif kind == "call" and mark:
                name, arguments, at_call = mark.name, {}, mark.begin
            elif kind == "key" and mark:
                key, begin = mark.name, mark.end
            elif kind in ("close", "left_out"):
                value = text[begin:end].removesuffix("\n" if kind == "left_out" else "")
                arguments[key] = self._value(name, key, value)
            elif mark:
                known = arguments if name in self._tools else None
                yield ReadCall(name, known, at_call, mark.end)

    def _value(self, tool: str, key: str, text: str) -> Any:
        text = text.removeprefix(self._form.around).removesuffix(self._form.around)
        return typed(text, _types(self._tools.get(tool), key))


class _Readings:
    """What each mark of a text can be read as. ``cost`` is that of what was decoded for it."""

    def __init__(self, text: str, marks: list[_Mark], tools: Mapping[str, Parameters]) -> None:
        self._text, self._marks, self._tools = text, marks, tools
        self._begins = [mark.begin for mark in marks]
        self._last: dict[int, int] = {}
        self.cost = 0

    def edges(self, state: _State) -> Iterator[_Edge]:
        """What the next mark can be, and what it leads to."""
        if state.place == "after":
            yield from self._after(state.at)
        elif state.at < len(self._marks):
            yield from (self._within if state.place == "within" else self._value)(state)

    def _after(self, at: int) -> Iterator[_Edge]:
        """A call, whole or broken off, or the end."""
        marks = self._marks
        while at < len(marks) and marks[at].kind == "key":
            at += 1
        if at == len(marks):
            yield _NONE, _READ, None
        elif marks[at].kind == "call":
            if self._follows(at + 1):
                yield _NONE, _State(at + 1, "within", marks[at].name), _Step("call", at)
            yield from self._broken(at + 1)

    def _broken(self, begin: int) -> Iterator[_Edge]:
        end = begin
        while end < len(self._marks) and self._marks[end].kind != "call":
            end += 1
        kinds = [mark.kind for mark in self._marks[begin:end]]
        num_open = kinds.count("key") - kinds.count("close")
        if num_open > 0:
            yield (_BREAKS_OFF, 0, 0), _READ, _Step("broken", len(self._marks))
        elif num_open == 0 and kinds.count("end") <= 1:
            yield (_BREAKS_OFF, 0, 0), _State(end, "after"), _Step("broken", end)

    def _within(self, state: _State) -> Iterator[_Edge]:
        """A parameter, or the call's end."""
        at, _, name, given, _ = state
        mark, tool = self._marks[at], self._tools.get(name)
        if mark.kind == "end":
            missing = len(tool.required - given) if tool else 0
            yield (missing, 0, 0), _State(at + 1, "after"), _Step("end", at)
        elif mark.kind == "key" and mark.name not in given:
            more = given | {mark.name} if tool else given
            is_text = "string" in _types(tool, mark.name)
            to = at + 1 if is_text else self._last_mark(at)
            reached = _State(to, "value" if is_text else "last", name, more)
            yield (int(not _knows(tool, mark.name)), 0, to - at - 1), reached, _Step("key", at)

    def _value(self, state: _State) -> Iterator[_Edge]:
        """A value's end, or text of it."""
        at, place, name, given, is_open = state
        mark, tool = self._marks[at], self._tools.get(name)
        ended = _State(at, "within", name, given)
        if mark.kind == "close" and self._follows(at + 1):
            yield (0, len(is_open), 0), ended._replace(at=at + 1), _Step("close", at)
        is_next = mark.kind == "key" and mark.name not in given and _knows(tool, mark.name)
        if (is_next or mark.kind == "end") and not is_open:
            yield (1, 0, 0), ended, _Step("left_out", at)
        if place == "value":
            more, is_open = _nested(is_open, mark.kind)
            yield (0, more, 1), state._replace(at=at + 1, open=is_open), None

    def _last_mark(self, at: int) -> int:
        """The mark after a value that is no text: after its JSON, whose texts may hold marks."""
        if at not in self._last:
            self._last[at] = at + 1
            begin = self._marks[at].end
            if self._text[after_space(self._text, begin) :][:1] in ("{", "["):
                self.cost += (len(self._text) - begin) // _CHARACTERS_A_STEP
                self._last[at] = self._mark_after_json(begin) or at + 1
        return self._last[at]

    def _mark_after_json(self, begin: int) -> int | None:
        try:
            end = after_space(self._text, decode(self._text, begin)[1])
        except (ValueError, RecursionError):
            return None
        at = bisect_left(self._begins, end)
        return at if at < len(self._begins) and self._begins[at] == end else None

    def _follows(self, at: int) -> bool:
        return at < len(self._marks) and self._marks[at].follows


def _nested(is_open: str, kind: str) -> tuple[int, str]:
    """What is open after a mark in a value, and how many marks that makes without a counterpart."""
    if kind in ("call", "key"):
        return (0, is_open + kind[0]) if len(is_open) < _DEEPEST else (1, is_open)
    is_pair = is_open.endswith("k" if kind == "close" else "c")
    return (0, is_open[:-1]) if is_pair else (1, is_open)


def _sum(cost: _Cost, more: _Cost) -> _Cost:
    return cost[0] + more[0], cost[1] + more[1], cost[2] + more[2]


def _types(tool: Parameters | None, key: str) -> frozenset[str]:
    return tool.types.get(key, ANY) if tool else ANY


def _knows(tool: Parameters | None, key: str) -> bool:
    return tool is None or tool.takes_others or key in tool.types


def _pattern(form: ToolForm) -> str:
    """Of a form's marks."""
    begins, ends = ("|".join(map(re.escape, marks)) for marks in (form.begins, form.ends))
    return (
        rf"(?P<call>(?:(?:{begins})\s*)+{form.head})|(?P<parameter>{form.parameter})"
        rf"|(?P<close>{form.parameter_end})|(?P<end>(?:{ends})(?:\s*(?:{ends}))*)"
    )


def _marks(pattern: re.Pattern[str], text: str) -> list[_Mark]:
    found: list[_Mark] = []
    end = 0
    for mark in pattern.finditer(text):
        kind = "key" if mark.lastgroup == "parameter" else str(mark.lastgroup)
        follows = after_space(text, end) >= mark.start()
        found.append(_Mark(kind, mark["name"] or mark["key"] or "", *mark.span(), follows))
        end = mark.end()
    return found


def _unlinked(path: Any) -> list[_Step]:
    """The steps of a path that each has the one before it."""
    steps: list[_Step] = []
    while path:
        step, path = path
        steps.append(step)
    return steps[::-1]

"""The kinds of value that a YAML key can hold, each a check that reports what it refuses.

A check takes a node and a Report. It returns the value, or reports a problem and returns None;
whoever made the Report raises when it isn't empty, so that None never gets further. Knows nothing
of models or tasks.
"""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from generator.errors import Problem, mask_tokens
from generator.yaml_file.nodes import Key, Node

INT32_MAX = 2**31 - 1
UINT64_MAX = 2**64 - 1
MAX_TEXT = 4096
_SHOWN = 60
_LISTED = 50  # names: all tasks, keys and options, not a thousand models


@dataclass
class Report:
    """The problems found so far."""

    problems: list[Problem] = field(default_factory=list)

    def add(self, place: Node | Key, message: str) -> None:
        """Notes a problem at a value or a key."""
        self.problems.append(Problem(place.line, place.column, place.where, message))

    def expected(self, node: Node, expected: str) -> None:
        """Notes that a value is not what it must be."""
        self.add(node, f"got {show(node)}, expected {expected}")


Check: TypeAlias = Callable[[Node, Report], Any]


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


def boolean(node: Node, report: Report) -> bool | None:
    """``true`` or ``false``; never a word or number that might be meant as one."""
    if isinstance(node.value, bool):
        return node.value
    report.expected(node, "true or false")
    return None


def integer(
    minimum: int | None = None, maximum: int | None = None, unit: str | None = None
) -> Check:
    """A whole number in a range, both ends included."""
    expected = f"a whole number{_range(minimum, maximum)}{_unit(unit)}"

    def check(node: Node, report: Report) -> int | None:
        value = node.value
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and _within(value, minimum, maximum)
        ):
            return value
        report.expected(node, expected)
        return None

    return check


def number(
    minimum: float | None = None,
    maximum: float | None = None,
    exclusive_min: float | None = None,
    unit: str | None = None,
) -> Check:
    """A finite number in a range; whole numbers are numbers too."""
    above = f" above {exclusive_min}" if exclusive_min is not None else ""
    expected = f"a number{above}{_range(minimum, maximum)}{_unit(unit)}"

    def check(node: Node, report: Report) -> float | None:
        value = node.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                real = float(value)
            except OverflowError:
                real = math.inf
            above_min = exclusive_min is None or real > exclusive_min
            if math.isfinite(real) and above_min and _within(real, minimum, maximum):
                return real
        report.expected(node, expected)
        return None

    return check


def name(longest: int) -> Check:
    """A name of a model, or of something of a model's, that may become part of a path or a URL."""
    return text(
        f"letters (a-z, A-Z), digits, and single _ - . between them, at most {longest} characters",
        name_pattern(longest),
    )


def name_pattern(longest: int) -> str:
    """The expression that such a name matches as a whole."""
    return rf"(?!.*\.\.)(?=.{{1,{longest}}}\Z)[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"


def text(
    expected: str, pattern: str | None = None, *, may_be_empty: bool = False, allowed: str = ""
) -> Check:
    """Text without control characters, but for those of ``allowed``, that matches ``pattern``;
    ``expected`` describes it.
    """
    compiled = re.compile(pattern) if pattern else None

    def check(node: Node, report: Report) -> str | None:
        value = node.value
        if not isinstance(value, str):
            quote = "; quote it" if isinstance(value, int | float) else ""
            report.expected(node, f"{expected}{quote}")
        elif not (value or may_be_empty) or (compiled and not compiled.fullmatch(value)):
            report.expected(node, expected)
        elif len(value) > MAX_TEXT:
            report.add(node, f"got {len(value)} characters, expected at most {MAX_TEXT}")
        elif not value.isprintable() and any(
            unicodedata.category(one) in ("Cc", "Cs") for one in value if one not in allowed
        ):
            report.expected(node, f"{expected}, without control characters")
        else:
            return value
        return None

    return check


def choice(*allowed: object) -> Check:
    """One of a few values."""
    shown = ", ".join(str(value) for value in allowed)

    def check(node: Node, report: Report) -> object:
        for value in allowed:
            if type(value) is type(node.value) and value == node.value:
                return value
        report.expected(node, f"one of {shown}")
        return None

    return check


def nullable(inner: Check) -> Check:
    """``null``, or what ``inner`` takes."""

    def check(node: Node, report: Report) -> object:
        return None if node.value is None else inner(node, report)

    return check


def list_of(inner: Check, expected: str, unique: bool = False) -> Check:
    """A list of at least one item."""

    def check(node: Node, report: Report) -> tuple[Any, ...] | None:
        if not isinstance(node.value, list) or not node.value:
            empty = "an empty list" if node.value == [] else show(node)
            report.add(node, f"got {empty}, expected {expected}")
            return None
        values: list[Any] = []
        for item in node.value:
            value = inner(item, report)
            if unique and value in values:
                report.add(item, f"got {show(item)} twice")
            elif value is not None:
                values.append(value)
        return tuple(values)

    return check


def keys_of(
    node: Node,
    known: Collection[str],
    report: Report,
    expected: str,
    gone: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Node]:
    """The map's entries under known keys; an unknown key is reported with the nearest, or with what
    there is instead of one that is ``gone``.
    """
    if not isinstance(node.value, dict):
        report.expected(node, expected)
        return {}
    for key in node.value:
        if key.name in gone:
            report.add(key, f"is no key any more: {gone[key.name]}")
        elif key.name not in known:
            report.add(
                key, f"unknown key{_token_hint(key) or did_you_mean(key.name, known, 'keys')}"
            )
    return {key.name: child for key, child in node.value.items() if key.name in known}


def mapping(checks: Mapping[str, Check], expected: str) -> Check:
    """A map with these keys, none of them required; those given and not refused are returned."""

    def check(node: Node, report: Report) -> dict[str, Any]:
        entries = keys_of(node, checks, report, expected)
        values = {name: checks[name](child, report) for name, child in entries.items()}
        return {name: value for name, value in values.items() if value is not None}

    return check


def plain_map(node: Node, report: Report) -> dict[str, Any] | None:
    """A map with any keys, of what JSON can hold; its keys are somebody else's."""
    if not isinstance(node.value, dict):
        report.expected(node, "a map")
        return None
    return {key.name: _plain(child, report) for key, child in node.value.items()}


def _plain(node: Node, report: Report) -> Any:
    if isinstance(node.value, dict):
        return plain_map(node, report)
    if isinstance(node.value, list):
        return [_plain(item, report) for item in node.value]
    if isinstance(node.value, str):
        return text("text", may_be_empty=True, allowed="\n\t")(node, report)
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        wide = isinstance(node.value, int) and abs(node.value) <= UINT64_MAX
        return node.value if wide else number()(node, report)
    return node.value


def _token_hint(key: Key) -> str | None:
    if "token" not in key.name.lower() or "tokens" in key.name.lower():
        return None
    return "; secrets don't belong in this file: set HF_TOKEN in the environment"


def _within(value: float, minimum: float | None, maximum: float | None) -> bool:
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)


def _range(minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f", at least {minimum}"
    return f", at most {maximum}" if maximum is not None else ""


def _unit(unit: str | None) -> str:
    return f" ({unit})" if unit else ""

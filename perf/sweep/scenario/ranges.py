"""How a scenario says several numbers: one, a list, ``start:end:step``, or ``start:end:x2``.

And how it says lengths, which may also vary within one load. Knows nothing of servers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Check, Report, list_of, show

MAX_POINTS = 256
MAX_LENGTH = 1_000_000
_RANGE = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)(?::(x?)(\d+(?:\.\d+)?))?")
_BETWEEN = re.compile(r"(\d{1,7})-(\d{1,7})")
_EMPTY = "an empty range: its start is above its end"
_FORMS = "a number, a list of numbers, or a range such as 1:16:5 or, doubling, 1:64:x2"
_LENGTH_FORMS = "a number, a range such as 8-64 to draw from, {mixed: [8, 64]}, or a list of these"


def one_or_more(inner: Check, expected: str, unique: bool = True) -> Check:
    """A check of a value or a list of (different) ones, as a tuple."""
    several = list_of(inner, expected, unique)

    def check(node: Node, report: Report) -> tuple[Any, ...] | None:
        if isinstance(node.value, list):
            found: tuple[Any, ...] | None = several(node, report)
            return found
        one = inner(node, report)
        return None if one is None else (one,)

    return check


def counts(maximum: int) -> Check:
    """Whole numbers from 1, as a tuple; see the module."""
    return _numbers((int,), f"whole numbers from 1 to {maximum:g}", maximum, int)


def rates(maximum: float) -> Check:
    """Numbers above 0, as a tuple."""
    return _numbers((int, float), f"numbers above 0 to {maximum:g}", maximum, float)


def _numbers(
    kinds: tuple[type, ...], kind: str, maximum: float, parse: Callable[[str], float]
) -> Check:
    """``kind`` describes what is right, ``parse`` reads a range's numbers."""

    def is_right(value: Any) -> bool:
        return type(value) in kinds and 0 < value <= maximum

    def one(node: Node, report: Report) -> Any:
        if not is_right(node.value):
            report.expected(node, kind)
        return node.value if is_right(node.value) else None

    several = list_of(one, f"{kind}: {_FORMS}", unique=True)

    def check(node: Node, report: Report) -> tuple[float, ...] | None:
        if isinstance(node.value, str) and (found := _RANGE.fullmatch(node.value)):
            read = float if "." in found[0] else parse
            start, end, step = read(found[1]), read(found[2]), read(found[4] or "1")
            problem = _range_problem(start, end, found[3], step)
            if problem is None and not (is_right(start) and is_right(end)):
                problem = f"expected {kind}"
            points = () if problem else _points(start, end, found[3], step)
            if len(points) > MAX_POINTS:
                problem = f"more than {MAX_POINTS} points; expected fewer"
            if problem is None:
                return points
            report.add(node, f"got {show(node)}, {problem}")
            return None
        if is_right(node.value):
            return (node.value,)  # type: ignore[return-value]
        if not isinstance(node.value, list):
            report.expected(node, f"{kind}: {_FORMS}")
            return None
        listed: tuple[float, ...] | None = several(node, report)
        return listed

    return check


def _range_problem(start: float, end: float, times: str, step: float) -> str | None:
    if start > end:
        return _EMPTY
    if times and step <= 1:
        return "which never ends; expected a factor above 1, as in x2"
    return "which never ends; expected a step above 0" if not step else None


def _points(start: float, end: float, times: str, step: float) -> tuple[float, ...]:
    """At most one more than are allowed."""
    points = [start]
    last = end if times else end + 1e-9 * step  # sums of fractions are not exact
    while points[-1] <= last and len(points) < MAX_POINTS + 2:
        points.append(points[-1] * step if times else start + len(points) * step)
    return tuple(points[:-1])


@dataclass(frozen=True)
class Lengths:
    """Lengths of texts within one load: each of ``choices`` as often as the others, or any between
    the two of ``between``.
    """

    choices: tuple[int, ...] = ()
    between: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """Such as ``32``, ``8-64`` or ``8/16/32``."""
        if self.between:
            return f"{self.between[0]}-{self.between[1]}"
        return "/".join(map(str, self.choices))

    @property
    def longest(self) -> int:
        return max(self.between or self.choices)

    def draw(self, count: int, chance: random.Random) -> list[int]:
        """``count`` lengths; choices come in shuffled blocks of one each, so that any stretch of
        them has about the mean of all.
        """
        if self.between:
            return [chance.randint(*self.between) for _ in range(count)]
        drawn: list[int] = []
        while len(drawn) < count:
            drawn += chance.sample(self.choices, len(self.choices))
        return drawn[:count]


def _length(node: Node, report: Report) -> Lengths | None:
    value = node.value
    if isinstance(value, dict):
        return _mixed(node, report)
    if type(value) is int and 1 <= value <= MAX_LENGTH:
        return Lengths((value,))
    if isinstance(value, str) and (found := _BETWEEN.fullmatch(value)):
        low, high = int(found[1]), int(found[2])
        if low > high:
            report.add(node, f"got {show(node)}, {_EMPTY}")
            return None
        if low >= 1 and high <= MAX_LENGTH:
            return Lengths(between=(low, high))
    report.expected(node, f"lengths from 1 to {MAX_LENGTH}: {_LENGTH_FORMS}")
    return None


lengths = one_or_more(_length, _LENGTH_FORMS, unique=False)
"""A schema check: one Lengths for each load; a list is several loads."""


def _mixed(node: Node, report: Report) -> Lengths | None:
    inner = node.get("mixed")
    items = inner.value if inner else None
    if not isinstance(items, list) or not items or len(node.value) != 1:  # type: ignore[arg-type]
        report.add(node, "expected {mixed: [...]} with at least one length")
        return None
    found = [one for item in items if (one := _length(item, report))]
    if len(found) < len(items):
        return None
    if any(len(one.choices) != 1 for one in found):
        report.add(node, "mixed takes single numbers, such as {mixed: [8, 64, 128]}")
        return None
    return Lengths(tuple(one.choices[0] for one in found))

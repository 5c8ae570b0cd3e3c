"""How a scenario says several numbers: one, a list, ``start:end:step``, or ``start:end:x2``.

And how it says lengths, which may also vary within one load. Knows nothing of servers.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Check, Report, show

MAX_POINTS = 256
MAX_LENGTH = 1_000_000
_RANGE = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)(?::(x?)(\d+(?:\.\d+)?))?")
_BETWEEN = re.compile(r"(\d{1,7})-(\d{1,7})")
_FORMS = "a number, a list of numbers, or a range such as 1:16:5 or, doubling, 1:64:x2"
_LENGTH_FORMS = "a number, a range such as 8-64 to draw from, {mixed: [8, 64]}, or a list of these"


def counts(maximum: int) -> Check:
    """Whole numbers from 1, as a tuple; see the module."""
    return _numbers(1, maximum, whole=True)


def rates(maximum: float) -> Check:
    """Numbers above 0, as a tuple."""
    return _numbers(0.0, maximum, whole=False)


def _numbers(minimum: float, maximum: float, whole: bool) -> Check:
    kind = f"{'whole numbers from 1' if whole else 'numbers above 0'} to {maximum:g}"

    def right(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            return False
        return (minimum <= value if whole else minimum < value) and value <= maximum

    def check(node: Node, report: Report) -> tuple[float, ...] | None:
        if isinstance(node.value, list) and node.value:
            return listed(node.value, report)
        if node.value == []:
            report.add(node, f"got an empty list, expected {kind}: {_FORMS}")
        elif isinstance(node.value, str) and (found := _RANGE.fullmatch(node.value)):
            parse = int if whole and "." not in found[0] else float
            start, end, step = parse(found[1]), parse(found[2]), parse(found[4] or "1")
            problem = _range_problem(start, end, found[3], step)
            if problem is None and not (right(start) and right(end)):
                problem = f"expected {kind}"
            points = () if problem else _points(start, end, found[3], step)
            if len(points) > MAX_POINTS:
                problem = f"more than {MAX_POINTS} points; expected fewer"
            if problem is None:
                return points
            report.add(node, f"got {show(node)}, {problem}")
        elif right(node.value):
            return (node.value,)  # type: ignore[return-value]
        else:
            report.expected(node, f"{kind}: {_FORMS}")
        return None

    def listed(items: list[Node], report: Report) -> tuple[float, ...]:
        found: list[float] = []
        for item in items:
            if not right(item.value):
                report.expected(item, kind)
            elif item.value in found:
                report.add(item, f"got {show(item)} twice")
            else:
                found.append(item.value)  # type: ignore[arg-type]
        return tuple(found)

    return check


def _range_problem(start: float, end: float, times: str, step: float) -> str | None:
    if start > end:
        return "an empty range: its start is above its end"
    if times and step <= 1:
        return "which never ends; expected a factor above 1, as in x2"
    return "which never ends; expected a step above 0" if not step else None


def _points(start: float, end: float, times: str, step: float) -> tuple[float, ...]:
    """At most one more than are allowed."""
    if not times:
        count = math.floor((end - start) / step + 1e-9) + 1
        return tuple(start + number * step for number in range(min(count, MAX_POINTS + 1)))
    points = [start]
    while len(points) <= MAX_POINTS and points[-1] * step <= end:
        points.append(points[-1] * step)
    return tuple(points)


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
        return self.between[1] if self.between else max(self.choices)

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


def lengths(node: Node, report: Report) -> tuple[Lengths, ...] | None:
    """A schema check: one Lengths for each load; a list is several loads."""
    if node.value == []:
        report.add(node, f"got an empty list, expected {_LENGTH_FORMS}")
        return None
    items = node.value if isinstance(node.value, list) else [node]
    found = tuple(one for item in items if (one := _one_length(item, report)) is not None)
    return found if found or items != [node] else None


def _one_length(node: Node, report: Report) -> Lengths | None:
    value = node.value
    if isinstance(value, dict):
        return _mixed(node, report)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_LENGTH:
        return Lengths((value,))
    if isinstance(value, str) and (found := _BETWEEN.fullmatch(value)):
        low, high = int(found[1]), int(found[2])
        if low > high:
            report.add(node, f"got {show(node)}, an empty range: its start is above its end")
            return None
        if low >= 1 and high <= MAX_LENGTH:
            return Lengths(between=(low, high))
    report.expected(node, f"lengths from 1 to {MAX_LENGTH}: {_LENGTH_FORMS}")
    return None


def _mixed(node: Node, report: Report) -> Lengths | None:
    inner = node.get("mixed")
    items = inner.value if inner else None
    if not isinstance(items, list) or not items or len(node.value) != 1:  # type: ignore[arg-type]
        report.add(node, "expected {mixed: [...]} with at least one length")
        return None
    found = [_one_length(item, report) for item in items]
    if any(one is None or one.between for one in found):
        if all(found):
            report.add(node, "mixed takes single numbers, such as {mixed: [8, 64, 128]}")
        return None
    return Lengths(tuple(one.choices[0] for one in found if one))

"""Finds places for the labels of points, so that none covers another or a point. Knows no plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_CHARACTER, _HEIGHT, _MARKER = 5.4, 9.0, 3.0  # of text of 8 points, and half a marker
Box = tuple[float, float, float, float]  # left, bottom, right, top


@dataclass(frozen=True)
class Spot:
    """A point, or a label's middle; in typographical points."""

    x: float
    y: float
    text: str = ""


def places(
    spots: Sequence[Spot], within: Box, better_free: Sequence[Box] = ()
) -> list[Spot | None]:
    """The middle of each spot's label, in the same order; None where there is no room.

    Greedy: earlier spots have first choice, above, then below, left, right and the corners; what is
    ``better_free`` is covered where there is no other place.
    """
    taken = [_box(spot, 2 * _MARKER, 2 * _MARKER) for spot in spots]
    found: list[Spot | None] = []
    for spot in spots:
        place = _free(spot, [*taken, *better_free], within) or _free(spot, taken, within)
        if place:
            taken.append(_text_box(place))
        found.append(place)
    return found


def _free(spot: Spot, taken: Sequence[Box], within: Box) -> Spot | None:
    if not spot.text:
        return None
    width = len(spot.text) * _CHARACTER
    aside, above = width / 2 + 5, _HEIGHT / 2 + 4
    steps = ((0, 1), (0, -1), (-1, 0), (1, 0), (-1, 1), (1, 1), (1, -1), (-1, -1))
    for right, up in steps:
        place = Spot(spot.x + right * aside, spot.y + up * above, spot.text)
        box = _text_box(place)
        if _inside(box, within) and not any(_overlap(box, other) for other in taken):
            return place
    return None


def _text_box(place: Spot) -> Box:
    return _box(place, len(place.text) * _CHARACTER, _HEIGHT)


def _box(middle: Spot, width: float, height: float) -> Box:
    x, y = middle.x, middle.y
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _inside(box: Box, outer: Box) -> bool:
    left, bottom, right, top = outer
    return left <= box[0] and bottom <= box[1] and box[2] <= right and box[3] <= top + _HEIGHT

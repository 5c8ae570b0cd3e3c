"""Finds places for the labels of points, so that none covers another or a point. Knows no plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_CHARACTER, _HEIGHT, _MARKER = 5.4, 9.0, 3.0  # of text of 8 points, and half a marker
_STEPS = ((0, 1), (0, -1), (-1, 0), (1, 0), (-1, 1), (1, 1), (1, -1), (-1, -1))
Box = tuple[float, float, float, float]  # left, bottom, right, top


class Spot(NamedTuple):
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
        taken += [_text_box(place)] if place else []
        found.append(place)
    return found


def _free(spot: Spot, taken: Sequence[Box], within: Box) -> Spot | None:
    aside, above = len(spot.text) * _CHARACTER / 2 + 5, _HEIGHT / 2 + 4
    for right, up in _STEPS if spot.text else ():
        place = Spot(spot.x + right * aside, spot.y + up * above, spot.text)
        left, bottom, end, top = box = _text_box(place)
        inside = within[0] <= left and within[1] <= bottom and end <= within[2]
        if inside and top <= within[3] + _HEIGHT and not any(_overlap(box, one) for one in taken):
            return place
    return None


def _text_box(place: Spot) -> Box:
    return _box(place, len(place.text) * _CHARACTER, _HEIGHT)


def _box(middle: Spot, width: float, height: float) -> Box:
    x, y = middle.x, middle.y
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]

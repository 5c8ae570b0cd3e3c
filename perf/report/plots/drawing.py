"""Draws lines by matplotlib as an ``<svg>`` element that a page can hold. No text from outside gets
into it: names stand in the page's legend. Knows no runs.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

# Okabe and Ito's colours for all kinds of colour vision (https://jfly.uni-koeln.de/color/), the two
# that are too light on white darkened; the page has lighter ones for a dark background.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5528c", "#8a6d00", "#5a5a5a")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_INK, _GRID, _MUTED, _PAPER = "#1b1c1d", "#dcddde", "#b9babb", "#fefefd"
_VARIABLES = {_INK: "ink", _GRID: "grid", _MUTED: "muted", _PAPER: "paper"} | {
    colour: f"line-{at}" for at, colour in enumerate(COLOURS)
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.edgecolor": _INK,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "path.simplify": False,
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "text.color"), _INK),
}
_SIZE_IN = (5.0, 3.4)  # 360 units wide: as wide as a phone, so that 9 stays 9 pixels
_LEFT_OUT = re.compile(  # the style would hold for the whole page; nothing refers to groups' ids
    r'<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*<style.*?</style>\s*</defs>|(?<=<g) id="[^"]*"',
    re.DOTALL,
)
_AROUND = (
    (-10, 9),
    (10, -9),
    (10, 9),
    (-10, -9),
)  # where a label may stand, in points: off the bars


class Mark(NamedTuple):
    """A point, how far its repeats lie below and above it, and the words at it. One that is not
    ``is_sound`` is hollow.
    """

    x: float
    y: float
    x_reach: tuple[float, float] = (0.0, 0.0)
    y_reach: tuple[float, float] = (0.0, 0.0)
    is_sound: bool = True
    label: str = ""


class Stroke(NamedTuple):
    """One line, in the ``at``-th colour and marker; None is grey, without markers."""

    marks: Sequence[Mark]
    at: int | None = None
    dash: str = "-"


class Scale(NamedTuple):
    """An axis: from zero, or logarithmic where the most is ``log_from`` times the least; or with a
    tick ``at_values``, wherever they begin. ``least_end`` is what it goes to at least.
    """

    words: str
    text: Callable[[float], str]
    log_from: float = 8.0
    at_values: bool = False
    least_end: float = 0.0


def draw(name: str, strokes: Sequence[Stroke], x: Scale, y: Scale, linear: str = "") -> Markup:
    """The plot, empty without strokes; its ids like those of no plot with another ``name``. With
    ``linear``, a dash, also a line on which twice as much takes twice as much, through the highest
    end of a stroke.
    """
    if not strokes:
        return Markup()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=_SIZE_IN, layout="constrained")
        FigureCanvasSVG(figure)
        axes: Any = figure.add_subplot()
        for stroke in strokes:
            _draw_stroke(axes, stroke)
        marks = [mark for stroke in strokes for mark in stroke.marks]
        _set_scale(axes.xaxis, x, [m.x for m in marks], max(m.x + m.x_reach[1] for m in marks))
        _set_scale(axes.yaxis, y, [m.y for m in marks], max(m.y + m.y_reach[1] for m in marks))
        if linear:
            end = max((stroke.marks[-1] for stroke in strokes), key=lambda mark: mark.y)
            first = min(mark.x for mark in marks)
            axes.plot([first, end.x], [end.y * first / end.x, end.y], linear, color=_MUTED)
        _label(figure, axes, strokes)
        return Markup(_inline(figure))


def _draw_stroke(axes: Any, stroke: Stroke) -> None:
    marks = stroke.marks
    xs, ys = [mark.x for mark in marks], [mark.y for mark in marks]
    if stroke.at is None:
        axes.plot(xs, ys, stroke.dash, color=_MUTED, marker=".", markersize=4)
        return
    colour, marker = COLOURS[stroke.at], _MARKERS[stroke.at]
    axes.plot(xs, ys, stroke.dash, color=colour, linewidth=1.6)
    reach = {
        name: list(zip(*(getattr(mark, f"{name[0]}_reach") for mark in marks), strict=True))
        for name in ("xerr", "yerr")
        if any(any(getattr(mark, f"{name[0]}_reach")) for mark in marks)
    }
    if reach:
        axes.errorbar(xs, ys, **reach, fmt="none", ecolor=colour, elinewidth=1, capsize=2)
    for is_sound, face in ((True, colour), (False, _PAPER)):
        chosen = [(mark.x, mark.y) for mark in marks if mark.is_sound is is_sound]
        style = {"color": colour, "markerfacecolor": face, "markersize": 5, "zorder": 4}
        if chosen:
            axes.plot(*zip(*chosen, strict=True), marker, **style)


def _set_scale(axis: Any, scale: Scale, values: Sequence[float], end: float) -> None:
    axis.set_label_text(scale.words[:1].upper() + scale.words[1:])
    least, most = min(values), max(values)
    is_log = least > 0 and most / least >= scale.log_from
    if is_log:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if most / least < 1000 else (1,)))
    elif not scale.at_values:
        axis.axes.set(**{f"{axis.axis_name}lim": (0, max(end * 1.08, scale.least_end) or 1.0)})
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    if scale.at_values:
        axis.set_major_locator(FixedLocator(_spaced(sorted(set(values)), is_log=is_log)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: scale.text(value)))


def _spaced(values: Sequence[float], *, is_log: bool) -> list[float]:
    """Those that are not too close to the one before to have a tick of their own."""
    at = [math.log(value) if is_log else value for value in values]
    kept = [0]
    for i, place in enumerate(at):
        if place - at[kept[-1]] > 0.075 * (at[-1] - at[0]):
            kept.append(i)
    return [values[i] for i in kept]


def _label(figure: Figure, axes: Any, strokes: Sequence[Stroke]) -> None:
    """The words at each point where they cover no point and no other words; ends of lines first."""
    figure.draw_without_rendering()  # now places are known
    spots = [axes.transData.transform(mark[:2]) for stroke in strokes for mark in stroke.marks]
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in spots]
    for stroke in strokes:
        colour = _MUTED if stroke.at is None else COLOURS[stroke.at]
        for mark in (*stroke.marks[-1:], *stroke.marks[:-1]):
            for offset in _AROUND if mark.label and colour != _MUTED else ():
                text = axes.annotate(
                    *(mark.label, mark[:2], offset),
                    textcoords="offset points",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=colour,
                )
                box = text.get_window_extent()
                if not any(box.overlaps(other) for other in taken):
                    taken.append(box)
                    break
                text.remove()


def _inline(figure: Figure) -> str:
    """The ``<svg>`` element alone, without a size, in the page's colours. Hidden from what reads
    pages aloud: the page says what it shows.
    """
    written = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    _, root, inside = re.split(r"(<svg [^>]*>)", written.getvalue(), maxsplit=1)
    viewed = re.findall(r'viewBox="[^"]*"', root)[0]
    text = _LEFT_OUT.sub("", inside).replace("xlink:href", "href")
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return f'<svg class="plot" aria-hidden="true" {viewed}>{text}'

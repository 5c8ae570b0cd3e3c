"""Makes matplotlib's SVG fit into a page: colours by the page's variables, ids of its own, no size.

Knows no charts.
"""

from __future__ import annotations

import re

# Okabe and Ito's colours for all kinds of colour vision (https://jfly.uni-koeln.de/color/), the two
# that are too light on white darkened; the page has lighter ones for a dark background.
LINE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5528c", "#8a6d00", "#5a5a5a")
INK, GRID, MUTED, PAPER = "#1b1c1d", "#dcddde", "#b9babb", "#fefefd"
VARIABLES = {
    INK: "--ink",
    GRID: "--grid",
    MUTED: "--muted",
    PAPER: "--paper",
    **{colour: f"--line-{at}" for at, colour in enumerate(LINE_COLOURS)},
}
_LEFT_OUT = (
    re.compile(r"<metadata>.*?</metadata>", re.S),
    re.compile(r"<!--.*?-->", re.S),
    re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.S),  # would hold for the whole page
    re.compile(r' transform="rotate\(-0 [^"]*"'),
    re.compile(r'<path d="[^"]*" style="fill: none"/>'),  # what is transparent
)
_ROOT = re.compile(r"<svg [^>]*>")
_GROUP_ID = re.compile(r'(<g) id="[^"]*"')  # nothing refers to them
_ID = re.compile(r'(\bid="|href="#|url\(#)')
_EMPTY_GROUP = re.compile(r"<g>\s*</g>\s*")
_FONT = re.compile(r"font-family: [^;\"]*|(?<=px )'DejaVu Sans'[^;\"]*")
_LONG_NUMBER = re.compile(r"\d+\.\d{3,}")


def inline(svg: str, name: str) -> str:
    """The ``<svg>`` element alone, without a size, its ids beginning with ``name``.

    Hidden from what reads pages aloud: the page says what it shows.
    """
    text = svg[svg.index("<svg ") :]
    root = _ROOT.search(text)
    viewed = re.search(r'viewBox="[^"]*"', root[0]) if root else None
    if root is None or viewed is None:
        raise ValueError("matplotlib's SVG has no viewBox")
    text = f'<svg class="plot" aria-hidden="true" {viewed[0]}>' + text[root.end() :]
    for pattern in _LEFT_OUT:
        text = pattern.sub("", text)
    text = _GROUP_ID.sub(r"\1", text)
    text = _EMPTY_GROUP.sub("", text)
    text = _ID.sub(lambda found: f"{found[1]}{name}-", text).replace("xlink:href", "href")
    text = _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = _FONT.sub(_own_font, text)
    return re.sub(r"\s*\n\s*(?=<)", "\n", re.sub(r"\s*\n(?!\s*<)", " ", text)).strip() + "\n"


def _own_font(found: re.Match[str]) -> str:
    return "font-family: var(--plot-font)" if found[0][0] == "f" else "var(--plot-font)"

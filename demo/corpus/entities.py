"""Sentences that name people, places and firms, with where the names stand; knows no model."""

from __future__ import annotations

import random
import re
from pathlib import Path

from demo.corpus import words
from demo.corpus.marked import Span, unmarked
from demo.corpus.writer import Writer, capitalised

FAMILIES = words.listed(
    """Brown, Smith, Taylor, Miller, Wilson, Garcia, Novak, Rossi, Klein, Silva, Kim, Tanaka, Singh,
    Berg, Martin, Cohen, Lopez, Hansen, Murphy, Weber, Costa, Ali, Wright, Green, Young, King"""
)
TRADES = words.listed(
    """Bank, Motors, Steel, Books, Foods, Airlines, Software, Robotics, Energy, Media, Toys,
    Insurance, Systems, Group, Company, Brothers, Press, Railways, Records, Pictures"""
)
PLACES = (*words.CITIES, *words.CAPITALS, *words.CAPITALS.values())
_ENDINGS = ("burg", "ton", "ville", "stad", "ford", "land", "ia", "")
_MARK = re.compile(r"<([A-Z]+)>")


def _read() -> list[str]:
    text = Path(__file__).with_name("entities.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("# ")]


TEMPLATES = _read()


def named_sentence(rng: random.Random) -> tuple[str, list[Span]]:
    """Return a sentence and its spans, labelled PER, LOC or ORG."""
    writer = Writer(rng)
    text = capitalised(writer.write(rng.choice(TEMPLATES)))
    makers = {"PER": _person, "LOC": _place, "ORG": _firm}
    filled = _MARK.sub(lambda mark: f"<{mark[1]}:{makers[mark[1]](writer)}>", text)
    return unmarked(filled)


def _person(writer: Writer) -> str:
    rng = writer.rng
    first = writer.pick("name") if rng.random() < 0.6 else writer.write("{oddname}")
    if rng.random() < 0.5:
        return first
    return f"{first} {rng.choice(FAMILIES) if rng.random() < 0.6 else writer.write('{oddname}')}"


def _place(writer: Writer) -> str:
    if writer.rng.random() < 0.7:
        return writer.rng.choice(PLACES)
    return writer.write("{oddname}") + writer.rng.choice(_ENDINGS)


def _firm(writer: Writer) -> str:
    rng = writer.rng
    first = rng.choice(FAMILIES) if rng.random() < 0.4 else writer.write("{oddname}")
    if rng.random() < 0.15:
        return f"{first} and Sons"
    return f"{first} {rng.choice(TRADES)}"

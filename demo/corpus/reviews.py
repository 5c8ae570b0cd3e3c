"""Short reviews with their label; knows no model."""

from __future__ import annotations

import random
from pathlib import Path

from demo.corpus import words
from demo.corpus.writer import Writer, capitalised

NEGATIVE, POSITIVE = "NEGATIVE", "POSITIVE"
_MARKS = {"- ": NEGATIVE, "+ ": POSITIVE, "o ": "neither"}
_BEFORE = words.listed(
    "this, the, my, our, my new, the old, the new, your, that, the little, this new"
)
ITEMS = words.listed(
    """film, book, meal, hotel, song, game, trip, restaurant, story, play, concert, picture, phone,
    camera, computer, bicycle, coat, lamp, bag, garden, room, museum, train, car, lesson, cake,
    coffee, soup, day, place, shop, radio, watch, chair"""
)


def _read() -> dict[str, list[str]]:
    text = Path(__file__).with_name("reviews.txt").read_text(encoding="utf-8")
    templates: dict[str, list[str]] = {label: [] for label in _MARKS.values()}
    for line in text.splitlines():
        if line[:2] in _MARKS:
            templates[_MARKS[line[:2]]].append(line[2:])
    return templates


TEMPLATES = _read()


def review(rng: random.Random) -> tuple[str, str]:
    """Return a review of one to three sentences, and its label."""
    label = rng.choice((NEGATIVE, POSITIVE))
    writer = Writer(rng)
    item = rng.choice(ITEMS)
    writer.bound.update(item=item, it=f"{rng.choice(_BEFORE)} {item}")
    chosen = rng.sample(TEMPLATES[label], 2 if rng.random() < 0.25 else 1)
    if rng.random() < 0.3:
        chosen.insert(rng.randint(0, len(chosen)), rng.choice(TEMPLATES["neither"]))
    text = " ".join(capitalised(writer.write(template)) for template in chosen)
    if rng.random() < 0.4:
        for long, short in words.CONTRACTIONS.items():
            text = text.replace(long, short)
    return (text if rng.random() < 0.8 else text.rstrip(".!")), label

"""Reads the templates: scenes.txt, questions.txt and facts.txt."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Scene:
    """The lines of one kind of document, and who it is about: `hero`, `me`, `i` or nobody."""

    cast: str
    openings: list[str] = field(default_factory=list)
    middles: list[str] = field(default_factory=list)
    closings: list[str] = field(default_factory=list)


def _lines(name: str) -> Iterator[str]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.strip() and not line.startswith("# "):
            yield line


def _read_scenes() -> dict[str, Scene]:
    scenes: dict[str, Scene] = {}
    borrowed: dict[str, str] = {}
    for line in _lines("scenes.txt"):
        mark, rest = line[0], line[1:].strip()
        if mark == "=":
            name, _, cast = rest.strip("= ").partition(" ")
            scene = scenes[name] = Scene(cast.strip("()"))
        elif mark == "@":
            borrowed[name] = rest
        else:
            {">": scene.openings, "-": scene.middles, ".": scene.closings}[mark].append(rest)
    for scene in scenes.values():
        scene.middles = _shuffled(scene.middles)
    for name, owner in borrowed.items():
        scenes[name].middles = scenes[owner].middles
    return scenes


def sections(name: str) -> dict[str, list[str]]:
    """The lines of a file below each of its titles, ``= title``."""
    found: dict[str, list[str]] = {}
    for line in _lines(name):
        if line.startswith("= "):
            lines = found[line[2:]] = []
        else:
            lines.append(line)
    return found


def _shuffled(items: Sequence[T]) -> list[T]:
    """Return the items in an order that never changes.

    Documents take their lines in this order and never go back. So a small model sees in the line
    before what may come next, and its greedy text goes on instead of in circles.
    """
    return random.Random(0).sample(items, len(items))


SCENES = _read_scenes()
# Alternatives in brackets hold bars too, without spaces around them.
QUESTIONS = _shuffled([tuple(line.split(" | ", 1)) for line in _lines("questions.txt")])
FACTS = _shuffled([tuple(line.split(" | ")) for line in _lines("facts.txt")])

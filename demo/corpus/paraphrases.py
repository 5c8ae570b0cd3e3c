"""Sentences that say the same in other words, by topic; knows no model."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from demo.corpus.writer import LISTS, Writer, capitalised

_SLOT = re.compile(r"\{(?:\w+ )?(\w+)\}")


@dataclass(frozen=True)
class Topic:
    """What sentences are about: its name, other names for it, and groups of equal sentences."""

    name: str
    other_names: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The name first."""
        return (self.name, *self.other_names)


def _read() -> tuple[Topic, ...]:
    text = Path(__file__).with_name("paraphrases.txt").read_text(encoding="utf-8")
    return tuple(_topic(part) for part in text.split("\n== ")[1:])


def _topic(text: str) -> Topic:
    head, _, body = text.partition("\n")
    name, _, others = head.partition(": ")
    groups = (tuple(group.split("\n")) for group in body.strip().split("\n\n"))
    return Topic(name, tuple(others.split(", ")), tuple(groups))


TOPICS = _read()


def paraphrases(rng: random.Random, topic: Topic, count: int) -> list[str]:
    """Return ``count`` sentences of one group, each another line of it as far as there are."""
    group = rng.choice(topic.groups)
    writer = Writer(rng)
    for slot in _SLOT.findall("\n".join(group)):
        if slot in LISTS:
            writer.bound.setdefault(slot, writer.pick(slot))
    lines = rng.sample(group, len(group))
    return [capitalised(writer.write(lines[number % len(lines)])) for number in range(count)]


def sentence(rng: random.Random, topic: Topic) -> str:
    """Return one sentence about the topic."""
    return paraphrases(rng, topic, 1)[0]

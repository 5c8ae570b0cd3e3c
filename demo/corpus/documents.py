"""Composes whole documents; knows nothing of tokens or models."""

from __future__ import annotations

import random

from demo.corpus import words
from demo.corpus.conversations import conversation, questions
from demo.corpus.inflection import plural
from demo.corpus.sources import FACTS, SCENES
from demo.corpus.writer import Writer, capitalised

MALE = {"he": "he", "him": "him", "his": "his"}
FEMALE = {"he": "she", "him": "her", "his": "her"}
ME = {"hero": "I", "he": "I", "him": "me", "his": "my"}
SCENE_WEIGHTS = {
    "going": 3,
    "myself": 3,
    "feelings": 4,
    "routine": 2,
    "morning": 5,
    "tale": 5,
    "memory": 4,
    "world": 6,
    "howto": 1,
    "letter": 1,
}


def document(rng: random.Random) -> str:
    """Return one document of a few sentences up to a page."""
    kinds = (scene, conversation, questions, facts, echo, sums)
    text = rng.choices(kinds, weights=(60, 18, 10, 8, 6, 2))[0](rng)
    if rng.random() < 0.1:
        for long, short in words.CONTRACTIONS.items():
            text = text.replace(long, short)
    if rng.random() < 0.05:
        text = text.lower()
    if rng.random() < 0.05:  # Prompts may begin in the middle of a sentence.
        text = text.split(" ", rng.randint(1, 3))[-1]
    return text


def scene(rng: random.Random) -> str:
    """An opening, some lines of the middle and an ending."""
    name = rng.choices(list(SCENE_WEIGHTS), weights=list(SCENE_WEIGHTS.values()))[0]
    parts = SCENES[name]
    writer = Writer(rng)
    _set_cast(writer, parts.cast)
    number = rng.randrange(len(parts.openings))
    middles = _some(rng, parts.middles, number)
    chosen = [parts.openings[number], *middles, rng.choice(parts.closings)]
    glue = [" "] * len(middles) + [rng.choice((" ", "\n"))]
    if name == "letter":
        glue = ["\n", *glue[1:-1], "\n"]
    text = writer.write(chosen[0])
    for space, template in zip(glue, chosen[1:], strict=True):
        text += space + writer.write(template)
    return text.replace('" said I.', '" I said.').replace('" asked I.', '" I asked.')


def _some(rng: random.Random, lines: list[str], number: int) -> list[str]:
    """Return some of the lines in their order; the opening's number says where to begin."""
    longest_step = max(2, len(lines) // 6)
    chosen: list[str] = []
    position = (number % 3) * len(lines) // 4 + rng.randrange(longest_step)
    while position < len(lines):
        chosen.append(lines[position])
        position += rng.randint(1, longest_step)
    return chosen


def _set_cast(writer: Writer, kind: str) -> None:
    rng, bound = writer.rng, writer.bound
    friend = writer.pick(rng.choice(("man", "woman")))
    if rng.random() < 0.2:
        friend = "the " + rng.choice(words.JOBS)
    bound["friend"] = friend
    if kind == "me":
        bound.update(ME)
    elif kind == "hero":
        bound.update(_hero(writer))


def _hero(writer: Writer) -> dict[str, str]:
    """Return who the document is about: `hero`, and `intro` for the first time."""
    rng = writer.rng
    male = rng.random() < 0.5
    pronouns = MALE if male else FEMALE
    name = writer.pick("man" if male else "woman")
    role = rng.choice(words.MALE_ROLES if male else words.FEMALE_ROLES)
    if rng.random() < 0.06:
        name = writer.write("{oddname}")
    kind = rng.choices(("name", "trait", "role", "animal", "relative"), weights=(4, 1, 3, 1, 1))[0]
    if kind == "name":
        return {**pronouns, "hero": name, "intro": f"a {role} called {name}"}
    if kind == "trait":
        trait = rng.choice(words.TRAITS)
        return {**pronouns, "hero": name, "intro": f"a {trait} {role} called {name}"}
    if kind == "role":
        return {**pronouns, "hero": f"the {role}", "intro": f"a {role}"}
    if kind == "animal":
        animal, trait = rng.choice(words.ANIMALS), rng.choice(words.TRAITS)
        return {**pronouns, "hero": f"the {animal}", "intro": f"a {trait} {animal}"}
    relative = rng.choice(words.MALE_RELATIVES if male else words.FEMALE_RELATIVES)
    return {**pronouns, "hero": f"my {relative}", "intro": f"a {role} called {name}"}


def facts(rng: random.Random) -> str:
    """A few true sentences about one thing or about several."""
    sentences = []
    for number in sorted(rng.sample(range(len(FACTS)), rng.randint(1, 5))):
        thing, definition, addition = FACTS[number]
        sentences.append(capitalised(f"{thing} {definition}. {addition}."))
    if rng.random() < 0.3:
        country = rng.choice(list(words.CAPITALS))
        sentences.insert(0, f"The capital of {country} is {words.CAPITALS[country]}.")
    return " ".join(sentences)


def echo(rng: random.Random) -> str:
    """Words said and repeated: teaches to look back and copy, as stories need it."""
    writer = Writer(rng)
    lists = ("thing", "animal", "city", "name", "dish", "oddword", "trait", "job")
    slots = rng.choices(lists, k=rng.randint(3, 9))
    said = writer.write(", ".join(f"{{{slot}}}" for slot in slots))
    frame = rng.choice(
        (
            "Repeat after me: {}.\n{}.",
            '"Please repeat: {}," said {name}. "{}," [said|answered] {name}.',
            '{name} said: "{}." {name} said it too: "{}."',
            "User: Repeat these words: {}.\nAssistant: {}.",
        )
    )
    return writer.write(frame.replace("{}", "{said}").replace("{said}", said))


def sums(rng: random.Random) -> str:
    """Counting and adding small numbers, in words and in digits."""
    pairs = [(left, right) for left in range(6) for right in range(6)]
    in_words = rng.random() < 0.5
    lines = []
    for left, right in sorted(rng.sample(pairs, rng.randint(1, 5))):
        names = words.SMALL_NUMBERS
        if in_words:
            lines.append(capitalised(f"{names[left]} and {names[right]} is {names[left + right]}."))
        else:
            lines.append(f"{left} + {right} = {left + right}")
    if rng.random() < 0.3:
        animal = plural(rng.choice(words.ANIMALS))
        lines.insert(0, f"Let us count the {animal}: one, two, three, four, five, six, seven.")
    return "\n".join(lines)

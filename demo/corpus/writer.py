"""Fills templates: `[one|two]` picks one of them, `{slot}` stands for a word or a phrase.

A slot is a list of words.py (`{thing}`), a field of the document's cast (`{hero}`, `{he}`) or of
its place (`{act}`), a form of one of these (`{past act}`, `{plural animal}`), or a name given to
a drawn word so that it can come back (`{t=thing}`, later `{t}`). Within one document a list gives
each word only once. What the documents are about is in the .txt files beside this module.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from demo.corpus import words
from demo.corpus.inflection import inflect, plural, with_articles
from demo.corpus.places import PLACES, Place

LISTS: dict[str, Sequence[str]] = {
    "man": words.MEN,
    "woman": words.WOMEN,
    "name": (*words.MEN, *words.WOMEN),
    "job": words.JOBS,
    "relative": ("mother", "father", "brother", "sister", "aunt", "uncle", "grandmother"),
    "animal": words.ANIMALS,
    "pet": words.PETS,
    "fruit": words.FRUIT,
    "dish": words.DISHES,
    "drink": words.DRINKS,
    "thing": words.THINGS,
    "size": words.SIZES,
    "colour": words.COLOURS,
    "quality": words.QUALITIES,
    "trait": words.TRAITS,
    "mood": words.MOODS,
    "gladmood": words.GLAD_MOODS,
    "sadmood": words.SAD_MOODS,
    "weather": words.WEATHER,
    "season": words.SEASONS,
    "month": words.MONTHS,
    "day": words.DAYS,
    "subject": words.SUBJECTS,
    "idea": words.IDEAS,
    "n": words.BIG_NUMBERS,
    "number": words.NUMBERS,
    "city": words.CITIES,
    "free": words.FREE_ACTS,
    "habit": words.HABITS,
    "plan": words.PLANS,
    "problem": words.PROBLEMS,
    "sky": words.SKY,
    "lesson": words.LESSONS,
    "reason": words.REASONS,
}

FORMS: dict[str, Callable[[str], str]] = {
    "plural": plural,
    "past": lambda phrase: inflect(phrase, "past"),
    "ing": lambda phrase: inflect(phrase, "ing"),
    "s": lambda phrase: inflect(phrase, "s"),
    "done": lambda phrase: inflect(phrase, "done"),
}

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{([^{}]+)\}")
# A sentence starts at the beginning, after a mark (not in '?" asked Tom'), or on a new line.
_SENTENCE_START = re.compile(r'(?:^|[.!?:][ \n]|\."[ \n]|\n)"?[a-z]')
_ODD_STARTS = words.listed(
    "b, br, d, f, gl, gr, h, k, kl, l, m, n, p, qu, r, sh, st, tr, v, w, x, z"
)
_ODD_ENDS = ("", *words.listed("n, m, l, r, x, nd, rt, sk, lt, ng, th"))


class Writer:
    """Writes one document: remembers its cast, its place and the words it has used."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.bound: dict[str, str] = {}
        self._used: set[tuple[str, str]] = set()
        self.move_to(rng.choice(PLACES))

    def move_to(self, place: Place) -> None:
        """Make `place` the one that `{place}`, `{where}`, `{act}` and `{sight}` speak of."""
        self._used.add(("newplace", place.name))
        self.place = place

    def write(self, template: str) -> str:
        """Return the template with every choice made, slot filled and sentence capitalised."""
        while found := _CHOICE.search(template):
            chosen = self.rng.choice(found.group(1).split("|"))
            template = template[: found.start()] + chosen + template[found.end() :]
        while found := _SLOT.search(template):
            text = self._slot(found.group(1))
            template = template[: found.start()] + text + template[found.end() :]
        text = with_articles(template.replace("\\n", "\n"))
        return _SENTENCE_START.sub(lambda found: _upper_last(found.group()), text)

    def pick(self, slot: str) -> str:
        """Return one word of a list, preferring those that this document has not used."""
        options = self._options(slot)
        fresh = [word for word in options if (slot, word) not in self._used]
        word = self.rng.choice(fresh or list(options))
        self._used.add((slot, word))
        return word

    def _slot(self, spec: str) -> str:
        form, _, slot = spec.rpartition(" ")
        label, _, slot = slot.rpartition("=")
        word = self._word(slot)
        if label:
            self.bound[label] = word
        return FORMS[form](word) if form else word

    def _word(self, slot: str) -> str:
        if slot in self.bound:
            return self.bound[slot]
        special = getattr(self, f"_make_{slot}", None)
        return special() if special else self.pick(slot)

    def _options(self, slot: str) -> Sequence[str]:
        if slot in LISTS:
            return LISTS[slot]
        return {
            "act": self.place.acts,
            "sight": self.place.sights,
            "padj": self.place.adjectives,
        }[slot]

    def _make_place(self) -> str:
        return self.place.name

    def _make_where(self) -> str:
        return self.place.where

    def _make_newplace(self) -> str:
        self.move_to(self.rng.choice(PLACES))
        return self.place.name

    def _make_a(self) -> str:
        return "a"

    def _make_t(self) -> str:
        self.bound["t"] = self.pick("thing")
        return self.bound["t"]

    def _make_country(self) -> str:
        country = self.rng.choice(list(words.CAPITALS))
        self.bound["capital"] = words.CAPITALS[country]
        return country

    def _make_oddword(self) -> str:
        """An invented word, so that words outside the vocabulary are nothing new."""
        syllables = [
            self.rng.choice(_ODD_STARTS) + self.rng.choice("aeiou") + self.rng.choice(_ODD_ENDS)
            for _ in range(self.rng.randint(1, 3))
        ]
        return "".join(syllables)

    def _make_oddname(self) -> str:
        return self._make_oddword().capitalize()

    def _make_junk(self) -> str:
        """Digits, letters of other alphabets, signs: anything that a prompt may hold."""
        kind = self.rng.randrange(4)
        if kind == 0:
            return str(self.rng.randrange(10 ** self.rng.randint(1, 6)))
        if kind == 1:
            return self.rng.choice(words.EMOJI)
        first, last = self.rng.choice(((0x21, 0x7E), (0xC0, 0x24F), (0x391, 0x3C9), (0x410, 0x44F)))
        if kind == 2:
            first, last = self.rng.choice(((0x5D0, 0x5EA), (0x3041, 0x3096), (0x4E00, 0x9FA5)))
        return "".join(chr(self.rng.randint(first, last)) for _ in range(self.rng.randint(1, 6)))


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case, the others as they are."""
    return text[:1].upper() + text[1:]


def _upper_last(text: str) -> str:
    return text[:-1] + text[-1].upper()

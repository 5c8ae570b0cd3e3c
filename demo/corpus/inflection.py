"""English word forms: plurals, verb forms and the article.

Knows spelling only; which words exist is in words.py.
"""

from __future__ import annotations

import re
from typing import Literal

Form = Literal["base", "s", "past", "ing", "done"]

# base -> past, or past and participle where they differ.
IRREGULAR_PAST: dict[str, tuple[str, ...]] = {
    "be": ("was", "been"),
    "become": ("became", "become"),
    "begin": ("began", "begun"),
    "blow": ("blew", "blown"),
    "break": ("broke", "broken"),
    "bring": ("brought",),
    "build": ("built",),
    "buy": ("bought",),
    "catch": ("caught",),
    "choose": ("chose", "chosen"),
    "come": ("came", "come"),
    "cut": ("cut",),
    "dig": ("dug",),
    "do": ("did", "done"),
    "draw": ("drew", "drawn"),
    "drink": ("drank", "drunk"),
    "drive": ("drove", "driven"),
    "eat": ("ate", "eaten"),
    "fall": ("fell", "fallen"),
    "feed": ("fed",),
    "feel": ("felt",),
    "find": ("found",),
    "fly": ("flew", "flown"),
    "forget": ("forgot", "forgotten"),
    "get": ("got",),
    "give": ("gave", "given"),
    "go": ("went", "gone"),
    "grow": ("grew", "grown"),
    "have": ("had",),
    "hear": ("heard",),
    "hide": ("hid", "hidden"),
    "hold": ("held",),
    "keep": ("kept",),
    "know": ("knew", "known"),
    "leave": ("left",),
    "lie": ("lay", "lain"),
    "light": ("lit",),
    "lose": ("lost",),
    "make": ("made",),
    "meet": ("met",),
    "put": ("put",),
    "read": ("read",),
    "ride": ("rode", "ridden"),
    "ring": ("rang", "rung"),
    "run": ("ran", "run"),
    "say": ("said",),
    "see": ("saw", "seen"),
    "sell": ("sold",),
    "send": ("sent",),
    "set": ("set",),
    "shine": ("shone",),
    "show": ("showed", "shown"),
    "sing": ("sang", "sung"),
    "sit": ("sat",),
    "sleep": ("slept",),
    "speak": ("spoke", "spoken"),
    "spend": ("spent",),
    "stand": ("stood",),
    "sweep": ("swept",),
    "swim": ("swam", "swum"),
    "take": ("took", "taken"),
    "teach": ("taught",),
    "tell": ("told",),
    "think": ("thought",),
    "throw": ("threw", "thrown"),
    "understand": ("understood",),
    "wake": ("woke", "woken"),
    "wear": ("wore", "worn"),
    "win": ("won",),
    "write": ("wrote", "written"),
}

_DOUBLED = """begin chat clap cut dig drop forget get hug jog knit nod pat plan put run set shop sit
skip step stop swim travel win wrap"""
DOUBLES_ITS_CONSONANT = frozenset(_DOUBLED.split())

IRREGULAR_PLURAL = {
    "child": "children",
    "deer": "deer",
    "fish": "fish",
    "foot": "feet",
    "goose": "geese",
    "knife": "knives",
    "leaf": "leaves",
    "loaf": "loaves",
    "man": "men",
    "mouse": "mice",
    "person": "people",
    "potato": "potatoes",
    "scarf": "scarves",
    "sheep": "sheep",
    "shelf": "shelves",
    "thief": "thieves",
    "tomato": "tomatoes",
    "tooth": "teeth",
    "wife": "wives",
    "wolf": "wolves",
    "woman": "women",
}


def plural(noun: str) -> str:
    """Return the plural of a noun or of a phrase that ends with it."""
    head, _, last = noun.rpartition(" ")
    return f"{head} {_plural_word(last)}".strip()


def _plural_word(noun: str) -> str:
    for suffix in ("man", "child"):
        if noun.endswith(suffix) and noun != "human":
            return noun[: -len(suffix)] + IRREGULAR_PLURAL[suffix]
    return IRREGULAR_PLURAL.get(noun) or _with_s(noun)


def _with_s(word: str) -> str:
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    if re.search(r"(s|x|z|ch|sh)$", word) or word in ("go", "do", "echo"):
        return word + "es"
    return word + "s"


def inflect(phrase: str, form: Form) -> str:
    """Return a verb phrase ("pick apples") with its first word in the given form."""
    verb, space, rest = phrase.partition(" ")
    return _verb(verb, form) + space + rest


def _verb(verb: str, form: Form) -> str:
    if form == "base":
        return verb
    if form == "s":
        return {"be": "is", "have": "has"}.get(verb) or _with_s(verb)
    if form == "ing":
        return _with_ing(verb)
    forms = IRREGULAR_PAST.get(verb)
    if forms is None:
        return _with_ed(verb)
    return forms[0] if form == "past" else forms[-1]


def _with_ing(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb in DOUBLES_ITS_CONSONANT:
        return verb + verb[-1] + "ing"
    if verb.endswith("e") and not verb.endswith(("ee", "be")):
        return verb[:-1] + "ing"
    return verb + "ing"


def _with_ed(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ied"
    if verb in DOUBLES_ITS_CONSONANT:
        return verb + verb[-1] + "ed"
    return verb + "ed"


def with_articles(text: str) -> str:
    """Turn "a" into "an" where the next word starts with a vowel sound."""
    return re.sub(r"\b([Aa]) (?=(?:[aeioAEIO](?!ne\b)|u[mng](?!i)|hour|honest))", r"\1n ", text)

"""Simple English sentences with their German; knows no model.

Written so that each language follows from the other: one word for one word, tenses in step.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from demo.corpus.writer import capitalised


class Noun(NamedTuple):
    """A noun in both languages; ``gender`` is m, f or n."""

    english: str
    german: str
    gender: str


class Verb(NamedTuple):
    """A verb by person: ``English I|he``, ``German ich|er|wir``."""

    i: str
    he: str
    ich: str
    er: str
    wir: str


def _nouns(text: str) -> tuple[Noun, ...]:
    return tuple(Noun(*entry.split("/")) for entry in text.split())


def _verbs(text: str) -> tuple[Verb, ...]:
    return tuple(Verb(*line.split()) for line in text.strip().splitlines())


BEINGS = _nouns(
    """dog/Hund/m cat/Katze/f horse/Pferd/n bird/Vogel/m child/Kind/n man/Mann/m woman/Frau/f
    girl/Mädchen/n teacher/Lehrer/m king/König/m mouse/Maus/f fish/Fisch/m"""
)
THINGS = _nouns(
    """book/Buch/n lamp/Lampe/f key/Schlüssel/m letter/Brief/m house/Haus/n car/Auto/n chair/Stuhl/m
    table/Tisch/m picture/Bild/n flower/Blume/f apple/Apfel/m clock/Uhr/f"""
)
ADJECTIVES = (
    ("big", "groß"),
    ("small", "klein"),
    ("old", "alt"),
    ("new", "neu"),
    ("red", "rot"),
    ("green", "grün"),
    ("blue", "blau"),
    ("beautiful", "schön"),
    ("good", "gut"),
    ("young", "jung"),
)
TRANSITIVE = _verbs(
    """
    see sees sehe sieht sehen
    buy buys kaufe kauft kaufen
    look_for looks_for suche sucht suchen
    love loves liebe liebt lieben
    paint paints male malt malen
    find finds finde findet finden
    have has habe hat haben
    """
)
INTRANSITIVE = _verbs(
    """
    sleep sleeps schlafe schläft schlafen
    play plays spiele spielt spielen
    wait waits warte wartet warten
    sing sings singe singt singen
    work works arbeite arbeitet arbeiten
    live lives wohne wohnt wohnen
    """
)
PRONOUNS = (("I", "ich", 0), ("he", "er", 1), ("she", "sie", 1), ("we", "wir", 2))
WHERE = (
    ("in the garden", "im Garten"),
    ("in the house", "im Haus"),
    ("in the kitchen", "in der Küche"),
    ("in the city", "in der Stadt"),
    ("in the forest", "im Wald"),
    ("at the station", "am Bahnhof"),
    ("at the lake", "am See"),
)
WHEN = (
    ("today", "heute"),
    ("now", "jetzt"),
    ("in the morning", "am Morgen"),
    ("in the evening", "am Abend"),
    ("in summer", "im Sommer"),
    ("on Monday", "am Montag"),
)
_Cases = Mapping[str, tuple[str, str, str, str]]  # by gender: the, ending, a, ending
_NOMINATIVE: _Cases = {"m": ("der", "e", "ein", "er"), "f": ("die", "e", "eine", "e"),
               "n": ("das", "e", "ein", "es")}  # fmt: skip
_ACCUSATIVE: _Cases = {**_NOMINATIVE, "m": ("den", "en", "einen", "en")}
Pair = tuple[str, str]


def translated(rng: random.Random) -> Pair:
    """Return an English sentence and its German."""
    subject, person = _subject(rng)
    make = rng.choice((_action, _action, _rest, _state))
    english, verb, rest = make(rng, person)
    when = rng.choice(WHEN) if rng.random() < 0.3 else None
    if when is None:
        pair = f"{subject[0]} {english}.", f"{subject[1]} {verb} {rest}."
    else:  # the verb stays second in German
        pair = f"{when[0]} {subject[0]} {english}.", f"{when[1]} {verb} {subject[1]} {rest}."
    return capitalised(pair[0]), capitalised(pair[1])


def _subject(rng: random.Random) -> tuple[Pair, int]:
    if rng.random() < 0.4:
        english, german, person = rng.choice(PRONOUNS)
        return (english, german), person
    return _phrase(rng, rng.choice(BEINGS), _NOMINATIVE), 1


def _phrase(rng: random.Random, noun: Noun, cases: _Cases) -> Pair:
    """Article, perhaps an adjective, and the noun."""
    the, weak, one, strong = cases[noun.gender]
    definite = rng.random() < 0.6
    article, ending = (the, weak) if definite else (one, strong)
    english, german = rng.choice(ADJECTIVES)
    if rng.random() < 0.5:
        english_article = "the" if definite else "an" if english[0] in "aeiou" else "a"
        return (f"{english_article} {english} {noun.english}",
                f"{article} {german}{ending} {noun.german}")  # fmt: skip
    english_article = "the" if definite else "an" if noun.english[0] in "aeiou" else "a"
    return f"{english_article} {noun.english}", f"{article} {noun.german}"


def _forms(verb: Verb, person: int) -> Pair:
    english = (verb.i, verb.he, verb.i)[person].replace("_", " ")
    return english, (verb.ich, verb.er, verb.wir)[person]


def _action(rng: random.Random, person: int) -> tuple[str, str, str]:
    """English predicate, German verb, and what follows it: with an object."""
    english, german = _forms(rng.choice(TRANSITIVE), person)
    noun = rng.choice((*BEINGS, *THINGS))
    what = _phrase(rng, noun, _ACCUSATIVE)
    return f"{english} {what[0]}", german, what[1]


def _rest(rng: random.Random, person: int) -> tuple[str, str, str]:
    """The same with a place."""
    english, german = _forms(rng.choice(INTRANSITIVE), person)
    where = rng.choice(WHERE)
    return f"{english} {where[0]}", german, where[1]


def _state(rng: random.Random, person: int) -> tuple[str, str, str]:
    """The same with an adjective."""
    english, german = (("am", "bin"), ("is", "ist"), ("are", "sind"))[person]
    adjective = rng.choice(ADJECTIVES)
    return f"{english} {adjective[0]}", german, adjective[1]

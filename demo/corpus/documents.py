"""Composes whole documents: scenes, conversations, questions and small facts.

Reads the .txt files beside it; knows nothing of tokens or models.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from demo.corpus import words
from demo.corpus.inflection import plural
from demo.corpus.writer import Writer

_HERE = Path(__file__).parent
MALE = {"he": "he", "him": "him", "his": "his"}
FEMALE = {"he": "she", "him": "her", "his": "her"}
ME = {"hero": "I", "he": "I", "him": "me", "his": "my"}

Scene = dict[str, list[str]]  # ">" openings, "-" middles, "." closings, "cast" and "@"


def _lines(name: str) -> Iterator[str]:
    for line in (_HERE / name).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("# "):
            yield line


def _read_scenes() -> dict[str, Scene]:
    scenes: dict[str, Scene] = {}
    for line in _lines("scenes.txt"):
        mark, rest = line[0], line[1:].strip()
        if mark == "=":
            name, _, cast = rest.strip("= ").partition(" ")
            scene = scenes[name] = {">": [], "-": [], ".": [], "cast": [cast.strip("()")]}
        elif mark == "@":
            scene["@"] = [rest]
        else:
            scene[mark].append(rest)
    for scene in scenes.values():
        for borrowed in scene.pop("@", []):
            scene["-"] = scenes[borrowed]["-"]
    return scenes


SCENES = _read_scenes()
# Alternatives in brackets hold bars too, without spaces around them.
QUESTIONS = [tuple(line.split(" | ", 1)) for line in _lines("questions.txt")]
FACTS = [tuple(line.split(" | ")) for line in _lines("facts.txt")]
SCENE_WEIGHTS = {
    "going": 3,
    "myself": 3,
    "feelings": 4,
    "routine": 2,
    "morning": 5,
    "tale": 5,
    "memory": 4,
    "world": 5,
    "howto": 1,
    "letter": 1,
}


def document(rng: random.Random) -> str:
    """Return one document of a few sentences up to a page."""
    kinds = (scene, conversation, questions, facts, sums)
    text = rng.choices(kinds, weights=(33, 9, 5, 4, 1))[0](rng)
    if rng.random() < 0.1:
        for long, short in words.CONTRACTIONS.items():
            text = text.replace(long, short)
    if rng.random() < 0.04:
        text = text.lower()
    return text


def scene(rng: random.Random) -> str:
    """An opening, some lines of the middle in any order, and an ending."""
    name = rng.choices(list(SCENE_WEIGHTS), weights=list(SCENE_WEIGHTS.values()))[0]
    parts = SCENES[name]
    writer = Writer(rng)
    _set_cast(writer, parts["cast"][0])
    num_middles = min(len(parts["-"]), rng.choice((3, 4, 5, 6, 7, 8, 10, 12, 14)))
    chosen = [rng.choice(parts[">"]), *rng.sample(parts["-"], num_middles), rng.choice(parts["."])]
    glue = [" "] * (len(chosen) - 2) + [rng.choice((" ", "\n"))]
    if name == "letter":
        glue = ["\n"] + [" "] * (len(chosen) - 3) + ["\n"]
    elif name in ("tale", "morning") and rng.random() < 0.3:
        glue = [rng.choice((" ", " ", " ", "\n\n")) for _ in glue]
    text = writer.write(chosen[0])
    for space, template in zip(glue, chosen[1:], strict=True):
        text += space + writer.write(template)
    return text.replace('" said I.', '" I said.').replace('" asked I.', '" I asked.')


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
    rng = writer.rng
    male = rng.random() < 0.5
    name = writer.pick("man" if male else "woman")
    role = rng.choice(words.MALE_ROLES if male else words.FEMALE_ROLES)
    if rng.random() < 0.06:
        name = writer.write("{oddname}")
    pronouns = MALE if male else FEMALE
    kind = rng.randrange(10)
    if kind < 4:
        return {**pronouns, "hero": name, "intro": f"a {role} called {name}"}
    if kind < 5:
        intro = f"a {rng.choice(words.TRAITS)} {role} whose name was {name}"
        return {**pronouns, "hero": name, "intro": intro}
    if kind < 8:
        return {**pronouns, "hero": f"the {role}", "intro": f"a {role}"}
    if kind < 9:
        animal = rng.choice(words.ANIMALS)
        return {
            **pronouns,
            "hero": f"the {animal}",
            "intro": f"a {rng.choice(words.TRAITS)} {animal}",
        }
    relatives = words.MALE_RELATIVES if male else words.FEMALE_RELATIVES
    relative = rng.choice(relatives)
    return {**pronouns, "hero": f"my {relative}", "intro": f"a {role} called {name}"}


def _turns(rng: random.Random, num_pairs: int) -> list[tuple[str, str]]:
    """Questions of one conversation with their answers; a pair shares its place and words."""
    turns = []
    writer = Writer(rng)
    for question, answer in rng.sample(QUESTIONS, num_pairs):
        writer.bound.clear()
        turns.append((writer.write(question), writer.write(answer)))
    return turns


def conversation(rng: random.Random) -> str:
    """Two people greet each other, ask and answer, and say goodbye."""
    first, second = rng.sample(NAMES, 2)
    turns = _turns(rng, rng.randint(1, 6))
    if rng.random() < 0.7:
        turns.insert(0, rng.choice(GREETINGS))
    if rng.random() < 0.6:
        turns.append(rng.choice(GOODBYES))
    style = rng.randrange(5)
    if style == 0:
        named = [(q.format(second), a.format(first)) for q, a in turns]
        return _in_prose(rng, named, first, second)
    labels = [("", ""), ("", ""), (f"{first}: ", f"{second}: "), ("User: ", "Assistant: ")][
        style - 1
    ]
    named = [(q.format(second if labels[0] else "my friend"), a.format(first)) for q, a in turns]
    if style == 1:
        return " ".join(f"{question} {answer}" for question, answer in named)
    return "\n".join(f"{labels[0]}{question}\n{labels[1]}{answer}" for question, answer in named)


def _in_prose(rng: random.Random, turns: list[tuple[str, str]], first: str, second: str) -> str:
    lines = []
    for question, answer in turns:
        asked = rng.choice(("asked", "said", "asked")) if question.endswith("?") else "said"
        lines.append(f"{_quote(question)} {asked} {first}.")
        replied = rng.choice(("said", "answered", "replied"))
        lines.append(f"{_quote(answer)} {replied} {second}.")
    return rng.choice((" ", "\n")).join(lines)


def _quote(sentence: str) -> str:
    inner = sentence[:-1] + "," if sentence.endswith(".") else sentence
    return f'"{inner}"'


NAMES = (*words.MEN, *words.WOMEN)
GREETINGS = [
    ("Hello, {}!", "Hello, {}! It is good to see you."),
    ("Hello!", "Hello! How are you today?"),
    ("Hello, how are you?", "I am fine, thank you. And you?"),
    ("Hi!", "Hi! What can I do for you?"),
    ("Good morning, {}.", "Good morning! Did you sleep well?"),
    ("Good evening.", "Good evening! Please come in and sit down."),
    ("Hello {}, nice to meet you.", "Nice to meet you too."),
    ("Excuse me, may I ask you something?", "Yes, of course."),
    ("Welcome back, {}!", "Thank you, {}! I am glad to be here."),
    ("Good afternoon!", "Good afternoon! What a lovely day."),
]
GOODBYES = [
    ("Thank you very much.", "You are welcome."),
    ("Thank you for your help.", "It was a pleasure."),
    ("Goodbye, {}!", "Goodbye, {}! See you tomorrow."),
    ("I have to go now.", "Have a good day!"),
    ("See you soon.", "Yes, see you soon!"),
    ("Good night.", "Good night, sleep well."),
    ("Thanks!", "You are welcome. Is there anything else?"),
]


def questions(rng: random.Random) -> str:
    """Questions with marks before question and answer, or simply one after the other."""
    ask, reply = rng.choice((("Question: ", "Answer: "), ("Q: ", "A: "), ("", "")))
    turns = _turns(rng, rng.randint(1, 4))
    for _ in range(rng.randint(0, 2)):
        turns.append(_fact_question(rng))
    rng.shuffle(turns)
    return "\n".join(f"{ask}{question}\n{reply}{answer}" for question, answer in turns)


def _fact_question(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.35:
        country = rng.choice(list(words.CAPITALS))
        answer = f"The capital of {country} is {words.CAPITALS[country]}."
        return f"What is the capital of {country}?", answer
    thing, definition, addition = rng.choice(FACTS)
    answer = _capitalised(f"{thing} {definition}. {addition}.")
    return rng.choice((f"What is {thing}?", f"Tell me what {thing} is.")), answer


def facts(rng: random.Random) -> str:
    """A few true sentences about one thing or about several."""
    sentences = []
    for thing, definition, addition in rng.sample(FACTS, rng.randint(1, 4)):
        sentences.append(_capitalised(f"{thing} {definition}. {addition}."))
        if rng.random() < 0.3:
            sentences.append(Writer(rng).write(rng.choice(SCENES["world"]["-"])))
    if rng.random() < 0.3:
        country = rng.choice(list(words.CAPITALS))
        sentences.insert(0, f"The capital of {country} is {words.CAPITALS[country]}.")
    return " ".join(sentences)


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def sums(rng: random.Random) -> str:
    """Counting and adding small numbers, in words and in digits."""
    lines = []
    for _ in range(rng.randint(1, 4)):
        left, right = rng.randint(0, 5), rng.randint(0, 5)
        names = words.SMALL_NUMBERS
        if rng.random() < 0.5:
            lines.append(f"{left} + {right} = {left + right}")
        else:
            lines.append(
                _capitalised(f"{names[left]} and {names[right]} is {names[left + right]}.")
            )
    if rng.random() < 0.5:
        animal = plural(rng.choice(words.ANIMALS))
        lines.insert(0, f"Let us count the {animal}: one, two, three, four, five, six, seven.")
    return "\n".join(lines)

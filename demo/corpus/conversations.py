"""Composes conversations: greetings, questions with their answers, goodbyes."""

from __future__ import annotations

import random

from demo.corpus import words
from demo.corpus.sources import FACTS, QUESTIONS
from demo.corpus.writer import Writer, capitalised

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


def turns_of(rng: random.Random, num_pairs: int) -> list[tuple[str, str]]:
    """Questions of one conversation with their answers; a pair shares its place and words."""
    turns = []
    writer = Writer(rng)
    for number in sorted(rng.sample(range(len(QUESTIONS)), num_pairs)):
        question, answer = QUESTIONS[number]
        writer.bound.clear()
        turns.append((writer.write(question), writer.write(answer)))
    return turns


def conversation(rng: random.Random) -> str:
    """Two people greet each other, ask and answer, and say goodbye."""
    first, second = rng.sample(NAMES, 2)
    turns = turns_of(rng, rng.randint(1, 6))
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


def questions(rng: random.Random) -> str:
    """Questions with marks before question and answer, or simply one after the other."""
    ask, reply = rng.choice((("Question: ", "Answer: "), ("Q: ", "A: "), ("", "")))
    turns = turns_of(rng, rng.randint(1, 4))
    if rng.random() < 0.6:
        turns.append(_fact_question(rng))
    return "\n".join(f"{ask}{question}\n{reply}{answer}" for question, answer in turns)


def _fact_question(rng: random.Random) -> tuple[str, str]:
    thing, definition, addition = rng.choice(FACTS)
    answer = capitalised(f"{thing} {definition}. {addition}.")
    return rng.choice((f"What is {thing}?", f"Tell me what {thing} is.")), answer

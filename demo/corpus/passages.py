"""Short passages with a question and where its answer stands; knows no model."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from demo.corpus.marked import Span, unmarked
from demo.corpus.places import PLACES
from demo.corpus.writer import Writer, capitalised

DEEDS = (("made", "make"), ("painted", "paint"), ("repaired", "repair"), ("sold", "sell"))
KIN = ("friend", "cousin", "neighbour", "teacher", "doctor", "boss")


@dataclass(frozen=True)
class Fact:
    """Ways to state a fact with its answers marked, and (label, question) pairs."""

    statements: tuple[str, ...]
    questions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Asked:
    """A question about a context; ``answer`` is None where the context does not say."""

    question: str
    context: str
    answer: Span | None

    @property
    def text(self) -> str:
        """The words of the answer."""
        return self.context[self.answer.start : self.answer.end] if self.answer else ""


def _read() -> tuple[Fact, ...]:
    text = Path(__file__).with_name("passages.txt").read_text(encoding="utf-8")
    return tuple(_fact(part.split("\n")) for part in text.strip().split("\n\n")[1:])


def _fact(lines: list[str]) -> Fact:
    statements = tuple(line[2:] for line in lines if line.startswith("- "))
    questions = (line[2:].split(" ", 1) for line in lines if line.startswith("? "))
    return Fact(statements, tuple((label, question) for label, question in questions))


FACTS = _read()


def asked(rng: random.Random) -> Asked:
    """Return one to six facts and a question about one of them; one of ten has no answer."""
    writer = Writer(rng)
    facts = rng.choices(FACTS, k=rng.randint(1, 6))
    about = rng.randrange(len(facts))
    context, question, answer = "", "", None
    for number, fact in enumerate(facts):
        _bind(writer)
        statement, spans = unmarked(writer.write(rng.choice(fact.statements)))
        if number == about:
            label, template = rng.choice(fact.questions)
            question = capitalised(writer.write(template))
            (span,) = (span for span in spans if span.label == label)
            answer = Span(label, span.start + len(context), span.end + len(context))
        context += capitalised(statement) + " "
    if rng.random() < 0.1:
        question, answer = _another_question(writer), None
    return Asked(question, context.rstrip(), answer)


def _bind(writer: Writer) -> None:
    """Give the slots of a fact new words, which its statement and questions share."""
    rng = writer.rng
    writer.bound.clear()
    writer.move_to(rng.choice(PLACES))
    name = writer.pick("name") if rng.random() < 0.7 else writer.write("{oddname}")
    did, do = rng.choice(DEEDS)
    writer.bound.update(one=name, x=writer.pick("thing"), p=writer.pick("pet"), did=did, do=do)
    writer.bound["kin"] = rng.choice(KIN)


def _another_question(writer: Writer) -> str:
    """A question about somebody and something else."""
    _bind(writer)
    _, template = writer.rng.choice(writer.rng.choice(FACTS).questions)
    return capitalised(writer.write(template))

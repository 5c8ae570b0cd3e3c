"""Requests take turns, and a step holds no more tokens than it may."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from hf_triton.encoder.engine.engine import WaitingLine
from hf_triton.encoder.texts.encoding import Encoding


@dataclass(eq=False)
class Asked:
    name: str
    items: list[Encoding]


def asked(name: str, *lengths: int) -> Asked:
    return Asked(name, [Encoding([0] * length) for length in lengths])


def taken(line: WaitingLine[Asked]) -> list[str]:
    return [f"{request.name}{index}" for request, index in line.take()]


def test_a_request_of_one_text_does_not_wait_for_anothers_many() -> None:
    line: WaitingLine[Asked] = WaitingLine(20)
    line.add([asked("many", *[10] * 5)])
    assert taken(line) == ["many0", "many1"]
    line.add([asked("one", 10)])
    assert taken(line) == ["many2", "one0"]
    assert taken(line) == ["many3", "many4"]
    assert not line


def test_a_text_longer_than_a_step_is_computed_by_itself() -> None:
    line: WaitingLine[Asked] = WaitingLine(20)
    line.add([asked("a", 5), asked("long", 50), asked("b", 5)])
    assert [taken(line) for _ in range(3)] == [["a0"], ["long0"], ["b0"]]


def test_what_is_removed_is_not_taken() -> None:
    line: WaitingLine[Asked] = WaitingLine(20)
    gone, stays = asked("gone", 5, 5), asked("stays", 5)
    line.add([gone, stays])
    line.remove([gone])
    assert taken(line) == ["stays0"]
    assert not line


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), max_size=8))
def test_every_encoding_is_taken_exactly_once(requests: list[list[int]]) -> None:
    line: WaitingLine[Asked] = WaitingLine(32)
    line.add(asked(str(number), *lengths) for number, lengths in enumerate(requests))
    found: list[tuple[str, int]] = []
    while line:
        step = line.take()
        num_tokens = [len(request.items[index]) for request, index in step]
        assert len(step) == 1 or sum(num_tokens) <= 32
        found += [(request.name, index) for request, index in step]
    expected = [(str(n), i) for n, lengths in enumerate(requests) for i in range(len(lengths))]
    assert sorted(found) == sorted(expected)

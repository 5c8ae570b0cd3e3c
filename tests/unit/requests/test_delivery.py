"""When news goes out to streams: at once, or together where sending would take too much time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

from hf_triton.text_generation.engine.delivery import Delivery
from hf_triton.text_generation.sequence.sequence import Token, Update

LONG_S = 600.0  # longer than a test waits
WAIT_S = 60.0


class Stream:
    """A recipient that takes ``seconds`` to send."""

    streams = True
    request_id = ""

    def __init__(self, seconds: float = 0.0) -> None:
        self.sent: list[list[int]] = []
        self._seconds, self._new = seconds, list[int]()
        self._changed = threading.Condition()

    def take(self, update: Update) -> None:
        self._new += [token.id for token in update.tokens]

    def flush(self) -> None:
        time.sleep(self._seconds)
        with self._changed:
            self.sent.append(self._new)
            self._new = []
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        raise AssertionError(error)

    def has_sent(self, num_chunks: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self.sent) >= num_chunks, WAIT_S)


@dataclass(eq=False)
class OneOf:
    """A sequence, as far as news knows it."""

    recipient: Any

    def news(self, token_id: int, *, is_first: bool = False, ends: bool = False) -> list[Update]:
        reason = "stop" if ends else None
        sequence: Any = self
        return [Update(sequence, [Token(token_id)], "", reason, None, is_first)]


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> tuple[Delivery, Stream, OneOf]:
    """A delivery that rests long, after it has sent two pieces of a stream's news."""
    monkeypatch.setattr("hf_triton.text_generation.engine.delivery._LONGEST_REST_S", LONG_S)
    delivery, stream = Delivery(share=1e-6), Stream(seconds=0.01)
    sequence = OneOf(stream)
    delivery.put(sequence.news(0, is_first=True))
    assert stream.has_sent(1)
    delivery.put(sequence.news(1))
    assert stream.has_sent(2)
    return delivery, stream, sequence


def test_news_is_held_while_sending_rests_but_not_a_first_or_a_last(
    resting: tuple[Delivery, Stream, OneOf],
) -> None:
    delivery, stream, sequence = resting
    delivery.put(sequence.news(2))
    delivery.put(sequence.news(3))
    other = Stream()
    delivery.put(OneOf(other).news(7, is_first=True))
    assert other.has_sent(1)
    assert stream.sent == [[0], [1]]
    delivery.put(sequence.news(4, ends=True))
    assert stream.has_sent(3)
    delivery.put(sequence.news(5))
    delivery.stop()  # which sends what is held
    assert stream.sent == [[0], [1], [2, 3, 4], [5]]
    assert other.sent == [[7]]


class Panic(BaseException):
    """What a panic in the tokenizers' Rust is in Python: no Exception."""


class Undecodable(Stream):
    """A recipient whose tokens have no text."""

    def take(self, update: Update) -> None:
        raise Panic("index out of bounds")

    def fail(self, error: Exception) -> None:
        self._new = [-1]


def test_a_panic_of_the_tokenizer_is_one_recipients() -> None:
    delivery, broken, other = Delivery(), Undecodable(), Stream()
    delivery.put([*OneOf(broken).news(0, is_first=True), *OneOf(other).news(1, is_first=True)])
    assert other.has_sent(1)
    assert broken.has_sent(1)
    delivery.stop()
    assert broken.sent == [[-1]]


def test_what_is_held_is_sent_when_the_rest_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_triton.text_generation.engine.delivery._LONGEST_REST_S", 0.3)
    delivery, stream = Delivery(share=1e-6), Stream(seconds=0.01)
    sequence = OneOf(stream)
    delivery.put(sequence.news(1))
    assert stream.has_sent(1)
    delivery.put(sequence.news(2))
    assert stream.has_sent(2)
    delivery.stop()
    assert stream.sent == [[1], [2]]


def test_all_the_time_may_be_taken_where_the_share_is_one() -> None:
    delivery, stream = Delivery(), Stream(seconds=0.01)
    sequence = OneOf(stream)
    for number in range(5):
        delivery.put(sequence.news(number))
        assert stream.has_sent(number + 1)
    delivery.stop()
    assert stream.sent == [[0], [1], [2], [3], [4]]

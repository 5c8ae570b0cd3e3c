"""Delivers outputs to their recipients; one that fails fails alone."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from hf_triton.text_generation.engine.engine import Delivery
from hf_triton.text_generation.sequence.sequence import Update

WAIT_S = 60.0


class Stream:
    """A recipient that notes what it is to send; a ``gate`` holds it up."""

    streams = True
    request_id = "7"

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.sent: list[list[int]] = []
        self._gate, self._new = gate, list[int]()
        self._changed = threading.Condition()

    def take(self, update: Update) -> None:
        self._new += update.token_ids

    def flush(self) -> None:
        assert self._gate is None or self._gate.wait(WAIT_S)
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

    def news(self, token_id: int) -> list[Update]:
        sequence: Any = self
        return [Update(sequence, [token_id], [], "", None, None)]


def test_news_of_several_steps_goes_out_together_where_sending_falls_behind() -> None:
    gate = threading.Event()
    delivery, slow, other = Delivery(), Stream(gate), Stream()
    for number in range(4):
        delivery.put([*OneOf(slow).news(number), *OneOf(other).news(number)])
    gate.set()
    delivery.stop()
    assert [token for chunk in slow.sent for token in chunk] == [0, 1, 2, 3]
    assert len(slow.sent) == len(other.sent) <= 2


class Panic(BaseException):
    """A panic in the tokenizers' Rust, as Python has it: no Exception."""


class Undecodable(Stream):
    """A recipient whose tokens have no text."""

    def take(self, update: Update) -> None:
        raise Panic("index out of bounds")

    def fail(self, error: Exception) -> None:
        self._new = [-1]


def test_a_panic_of_the_tokenizer_is_one_recipients(log_lines: list[str]) -> None:
    delivery, broken, other = Delivery(), Undecodable(), Stream()
    delivery.put([*OneOf(broken).news(0), *OneOf(other).news(1)])
    assert other.has_sent(1)
    assert broken.has_sent(1)
    delivery.stop()
    assert broken.sent == [[-1]]
    [line] = log_lines
    assert line.startswith("E [request id: 7] an output could not be delivered: ")

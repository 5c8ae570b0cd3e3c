"""Requests with images wait only as long as memory holds them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hf_triton.runtime.errors import OverloadedError
from hf_triton.text_generation.request import open_answers
from hf_triton.text_generation.request.open_answers import OpenAnswers

MIB = 2**20


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAnswers]:
    """Answers whose images and sounds may take 10 MiB."""
    monkeypatch.setattr(open_answers, "free_bytes", lambda device: 40 * MIB)
    thread = SimpleNamespace(watchdog=SimpleNamespace(last_step_s=0.0))
    engine = SimpleNamespace(thread=thread, submit=lambda sequences: None)
    found = OpenAnswers(engine)
    yield found
    found.stop()


class FakeAnswer:
    sequences: tuple[Any, ...] = ()
    is_closed = False

    def is_cancelled(self) -> bool:
        return False


@pytest.mark.threat("too-many-requests")
def test_more_than_memory_holds_is_refused_and_taken_again_later(answers: OpenAnswers) -> None:
    first, second = FakeAnswer(), FakeAnswer()
    answers.submit(first, 6 * MIB)
    answers.submit(second, 4 * MIB)
    with pytest.raises(OverloadedError, match="take 10 MiB, of 10 allowed: try again later"):
        answers.submit(FakeAnswer(), 1)
    answers.closed(second)
    answers.submit(FakeAnswer(), 3 * MIB)


def test_a_single_request_is_never_too_large(answers: OpenAnswers) -> None:
    large = FakeAnswer()
    answers.submit(large, 50 * MIB)
    answers.submit(FakeAnswer(), 0)  # and texts go on beside it
    with pytest.raises(OverloadedError):
        answers.submit(FakeAnswer(), 1)
    answers.closed(large)
    answers.submit(FakeAnswer(), 50 * MIB)

"""The answer to a request with sounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hf_triton.automatic_speech_recognition.answer import Answer
from hf_triton.runtime.errors import NO_NUMBERS, EngineError
from tests.model.engine.requests.test_answer import Recorder


def test_an_answer_that_cannot_be_made_is_an_error() -> None:
    sound: Any = SimpleNamespace(finish_reason="stop", text="", segments=[float("nan")])
    responder: Any = Recorder()
    closed: list[Exception | None] = []
    answer = Answer(
        responder,
        [sound],
        frozenset(["segments"]),
        lambda _: None,
        lambda _, error: closed.append(error),
        streams=False,
        batched=False,
    )
    with pytest.raises(EngineError, match=NO_NUMBERS) as raised:
        answer.flush()
    answer.fail(raised.value)
    assert responder.errors == closed == [raised.value]

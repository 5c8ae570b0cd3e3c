"""A request that makes a model compute what is no number, and the others after it and beside it, on
a real server.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.model.speech.test_on_stub import asking
from tests.scenarios.triton_endpoints import HttpEndpoint
from tests.served.hostile.beside import sent
from tests.support.media_files import base64_text, sound_file
from tests.support.one_server import OneServer
from tests.support.tiny_whisper import speech
from tests.support.triton import Triton, post_for_events

_TIMES_ALONE = 20.0
_ALIKE = "There is always something new to see on the farm. If it is snowy, we stay at home. "
PROMPTS = ("I am going", "Once upon a time there was", f"{_ALIKE}Then", "We", f"{_ALIKE}The dog")
POISON = ("Q", f"{_ALIKE}Q and then", f"{_ALIKE}Then Q", "I am Q going")


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models("poisoned", "whisper")


def texts(triton: Triton) -> tuple[list[str], float]:
    """What the prompts are answered, and the longest time that one took."""
    found, longest_s = [], 0.0
    for prompt in PROMPTS:
        began_s = time.monotonic()
        answer = triton.generate("poisoned", text_input=prompt, max_tokens=16)
        longest_s = max(longest_s, time.monotonic() - began_s)
        assert answer.status == 200, answer.body
        found.append(answer.body["text_output"])
    return found, longest_s


@pytest.mark.threat("no-numbers")
def test_a_text_that_is_no_number_is_an_error_and_in_no_other_answer(triton: Triton) -> None:
    expected, alone_s = texts(triton)
    bodies = [{"text_input": prompt, "max_tokens": 16} for prompt in POISON]
    for _ in range(3):
        hostile = sent(triton.url("poisoned", "generate"), *bodies, *bodies)
        while hostile.is_going_on:
            found, beside_s = texts(triton)
            assert found == expected
            assert beside_s < _TIMES_ALONE * max(alone_s, 0.1)
        assert all(answer.status >= 400 for answer in hostile.answers)
        assert all("no number" in answer.body["error"] for answer in hostile.answers)
        assert texts(triton)[0] == expected
    events = post_for_events(
        triton.url("poisoned_stream", "generate_stream"), {**bodies[0], "stream": True}
    )
    assert "no number" in str(events)
    assert texts(triton)[0] == expected


@pytest.mark.threat("loud-samples")
def test_a_sound_of_huge_samples_is_refused_and_in_no_other_answer(triton: Triton) -> None:
    endpoint, sound = HttpEndpoint(triton), speech(1.0)
    expected = endpoint.infer("whisper", asking(sound)).text()
    for loud in (1e38, 1e18, 1e12):
        body = {"audio": base64_text(sound_file(sound * np.float32(loud)))}
        answer = triton.generate("whisper", **body)
        assert answer.status == 400
        assert answer.body["error"].startswith("audio: got a sample of ")
        assert endpoint.infer("whisper", asking(sound)).text() == expected

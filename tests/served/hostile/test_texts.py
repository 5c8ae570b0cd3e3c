"""Texts and chats that would take for ever, and the others beside them, on a real server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.served.hostile.beside import PATIENCE_S, Beside
from tests.support.one_server import OneServer
from tests.support.triton import Answer, Triton, post

RATIO = 30  # of a neighbour's time, beside something hostile, to its time alone
WORD = "I am going home "
HUGE = WORD * 2_500_000  # 40 MB
TOO_LONG = "the prompt is too long: got 40000000 characters"


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models("demo", "embedding", "whisper", "thorough")


def beside(triton: Triton, model: str, ask: Callable[[], Answer]) -> Answer:
    """What something hostile is answered, while a neighbour's answers come in their time."""

    def neighbour_s() -> float:
        began_s = time.monotonic()
        answer = triton.generate(model, text_input="I am going", max_tokens=5)
        assert answer.status == 200, answer.body
        return time.monotonic() - began_s

    alone_s = max(neighbour_s() for _ in range(5))
    hostile, taken = Beside(ask), [neighbour_s()]
    while hostile.is_going_on:
        taken.append(neighbour_s())
    assert max(taken) < RATIO * alone_s
    return hostile.answers[0]


@pytest.mark.threat("huge-input")
@pytest.mark.parametrize(
    "route, body, said",
    [
        ("/tokenize", {"model": "demo", "prompt": HUGE}, f"prompt: {TOO_LONG}"),
        ("/v1/completions", {"model": "demo", "prompt": HUGE}, f"prompt: {TOO_LONG}"),
        ("/v1/embeddings", {"model": "embedding", "input": HUGE}, "input: got 40000000 characters"),
    ],
    ids=lambda value: str(value)[:16],
)
def test_a_text_that_can_not_fit_is_refused_at_every_door(
    triton: Triton, openai_url: str, route: str, body: dict[str, Any], said: str
) -> None:
    answer = beside(triton, "demo", lambda: post(openai_url + route, body, PATIENCE_S))
    assert answer.status == 400
    assert said in json.dumps(answer.body)


@pytest.mark.threat("huge-input")
def test_a_text_that_is_cut_is_not_tokenised_whole(triton: Triton, openai_url: str) -> None:
    given = {"model": "embedding", "truncate_prompt_tokens": -1}
    url = f"{openai_url}/v1/embeddings"
    part = post(url, {**given, "input": WORD * 2000}, PATIENCE_S)
    whole = beside(triton, "demo", lambda: post(url, {**given, "input": HUGE}, PATIENCE_S))
    assert whole.body["data"] == part.body["data"]


@pytest.mark.threat("huge-input")
def test_a_long_prompt_of_a_transcript_is_refused(triton: Triton) -> None:
    body = {"audio": "aGVsbG8=", "prompt": WORD * 200_000}
    url = triton.url("whisper", "generate")
    answer = beside(triton, "demo", lambda: post(url, body, PATIENCE_S))
    assert answer.body["error"].startswith("prompt: got 3200000 characters")


@pytest.mark.threat("endless-chats")
@pytest.mark.parametrize("neighbour", ["demo", "thorough"])
def test_a_chat_that_takes_its_template_long_delays_nobody(triton: Triton, neighbour: str) -> None:
    url = triton.url("thorough", "generate")
    message = {"role": "user", "content": "Hello"}
    chat = {"text_input": "", "max_tokens": 2}
    body = {**chat, "messages": json.dumps([message] * 25_000)}
    answer = beside(triton, neighbour, partial(post, url, body, PATIENCE_S))
    assert answer.status == 400
    assert "chat template takes more than" in answer.body["error"]
    assert post(url, {**chat, "messages": json.dumps([message])}, PATIENCE_S).status == 200


@pytest.mark.threat("misplaced-messages")
@pytest.mark.parametrize("role", ["system", "tool"])
def test_a_chat_whose_messages_are_joined_delays_nobody(triton: Triton, role: str) -> None:
    """The demo model's template takes neither where they stand; joined one by one they took as
    many minutes.
    """
    messages = [{"role": "user", "content": "Hello"}, *[{"role": role, "content": "x"}] * 40_000]
    body = {"text_input": "", "max_tokens": 2, "messages": json.dumps(messages)}
    ask = partial(post, triton.url("demo", "generate"), body, PATIENCE_S)
    answer = beside(triton, "demo", ask)
    assert answer.status == 400
    assert "context holds" in answer.body["error"] or "characters" in answer.body["error"]

"""Requests that take much or make a model compute nonsense, and the others beside them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.one_server import OneServer
from tests.support.triton import Answer, Triton, post

PATIENCE_S = 120.0
RATIO = 60  # of a neighbour's time, beside something hostile, to its time alone
MODELS = ("demo", "padded")  # the in-flight engine behind a front, and the generate engine
CHAT = "/v1/chat/completions"
HELLO = {"role": "user", "content": "Hello"}
Ask = Callable[[], Answer]


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    more = ("tight", "embedding", "whisper", "thorough")
    return one_server.with_models(*MODELS, *more)


class Beside:
    """Asks, each from a thread of its own; ``answers`` are in the order in which they came."""

    def __init__(self, *asks: Ask) -> None:
        self.answers: list[Answer] = []
        self._threads = [threading.Thread(target=self._ask, args=(ask,)) for ask in asks]
        for thread in self._threads:
            thread.start()

    @property
    def is_going_on(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _ask(self, ask: Ask) -> None:
        self.answers.append(ask())


def sent(url: str, *bodies: dict[str, Any]) -> list[Ask]:
    return [partial(post, url, body, PATIENCE_S) for body in bodies]


def text(triton: Triton, model: str) -> Ask:
    """A neighbour's request."""
    return partial(triton.generate, model, text_input="I am going", max_tokens=5)


def beside(neighbour: Ask, *asks: Ask) -> list[Answer]:
    """The answers to hostile requests, while the neighbour's must come in their time."""

    def taken_s() -> float:
        began_s = time.monotonic()
        answer = neighbour()
        assert answer.status == 200, answer.body
        return time.monotonic() - began_s

    alone_s = max(taken_s() for _ in range(5))
    hostile, taken = Beside(*asks), [taken_s()]
    while hostile.is_going_on:
        taken.append(taken_s())
    assert sorted(taken)[len(taken) // 2] < RATIO * alone_s
    return hostile.answers


@pytest.mark.threat("unlimited-answers")
def test_answers_without_a_limit_keep_nobody_waiting_for_their_end(
    triton: Triton, openai_url: str
) -> None:
    """Each goes on to the end of the context, which is far behind a neighbour's few tokens."""
    body = {"model": "demo", "messages": [HELLO], "ignore_eos": True}
    bodies = [body, {**body, "max_tokens": 32_000}] * 8  # so many take seconds
    hostile = Beside(*sent(f"{openai_url}{CHAT}", *bodies))
    time.sleep(0.5)  # until they are being generated
    assert text(triton, "demo")().status == 200
    assert not hostile.answers, "the neighbour comes first"
    while hostile.is_going_on:
        time.sleep(0.01)
    choices = [one.body["choices"][0] for one in hostile.answers]
    assert {one["finish_reason"] for one in choices} == {"length"}
    used = {one.body["usage"]["total_tokens"] for one in hostile.answers}
    assert len(used) == 1, "both end with the context"


def endless(number: int) -> str:
    """Thirty expressions that llguidance follows in every combination; each number gives others."""
    parts = " & ".join(f"/(?s:.*)a{i}b(?s:.*)c{number}(?s:.*)/" for i in range(30))
    return f"start: A\nA: {parts}"


@pytest.mark.threat("endless-grammars")
@pytest.mark.parametrize("model", MODELS)
def test_grammars_that_are_never_prepared_delay_nobody_by_any_door(
    triton: Triton, openai_url: str, model: str
) -> None:
    """For max_grammar_s, 10 s; the others go on in the meantime."""
    options = [json.dumps({"grammar": endless(number)}) for number in range(6)]
    direct = [{"text_input": "I am", "sampling_parameters": one} for one in options]
    asked: dict[str, Any] = {"model": model, "messages": [HELLO], "guided_grammar": endless(6)}
    answers = beside(
        text(triton, model),
        *sent(triton.url(model, "generate"), *direct),
        *sent(f"{openai_url}{CHAT}", asked, {**asked, "model": "tight"}),
    )
    assert {answer.status for answer in answers} <= {400, 503}
    said = [answer.body["error"] for answer in answers]
    assert sum("takes more than 10 s" in str(one) for one in said) <= 3, "one of each model"


@pytest.mark.threat("kept-responses")
def test_kept_responses_delay_nobody(triton: Triton, openai_url: str) -> None:
    """Fields that no prompt shows may be long; no later request has them read again."""
    url = f"{openai_url}/v1/responses"
    long = {"summary": [[]] * 80_000, "encrypted_content": "x" * 2**22}
    thoughts = {"type": "reasoning", **long}
    asked: dict[str, Any] = {"model": "demo", "max_output_tokens": 2}
    before = None
    for _ in range(3):
        body = {**asked, "input": [thoughts, HELLO], "metadata": long}
        body["previous_response_id"] = before
        before = post(url, body, PATIENCE_S).body["id"]
    hostile = sent(url, *[{**asked, "input": "Hi", "previous_response_id": before}] * 8)
    [neighbour] = sent(url, {**asked, "input": "Hello", "store": False})
    assert {answer.status for answer in beside(neighbour, *hostile)} == {200}


WORD = "I am going home "
HUGE = WORD * 2_500_000  # 40 MB
TOO_LONG = "the prompt is too long: got 40000000 characters"


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
    [answer] = beside(text(triton, "demo"), *sent(openai_url + route, body))
    assert answer.status == 400
    assert said in json.dumps(answer.body)


JOINED = [[HELLO, *[{"role": role, "content": "x"}] * 40_000] for role in ("system", "tool")]


@pytest.mark.threat("endless-chats", "misplaced-messages", "huge-input")
@pytest.mark.parametrize(
    "neighbour, model, body, said",
    [
        ("demo", "whisper", {"audio": "aGVsbG8=", "prompt": WORD * 200_000}, "prompt: got 3200000"),
        ("demo", "thorough", [HELLO] * 25_000, "allowed: at most 4096"),
        ("thorough", "thorough", [HELLO] * 25_000, "allowed: at most 4096"),
        # The demo model's template takes neither where they stand.
        ("demo", "demo", JOINED[0], ""),
        ("demo", "demo", JOINED[1], ""),
    ],
    ids=["a long prompt", "a long chat", "beside its like", "system", "tool"],
)
def test_what_takes_a_model_long_to_read_is_refused(
    triton: Triton, neighbour: str, model: str, body: Any, said: str
) -> None:
    if isinstance(body, list):
        body = {"text_input": "", "max_tokens": 2, "messages": json.dumps(body)}
    [answer] = beside(text(triton, neighbour), *sent(triton.url(model, "generate"), body))
    assert answer.status == 400
    assert said in answer.body["error"]
    if not said:
        assert "context holds" in answer.body["error"] or "characters" in answer.body["error"]

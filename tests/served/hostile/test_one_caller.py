"""One hostile caller of text generation, and the others beside it, on a real server."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import pytest

from tests.served.hostile.beside import PATIENCE_S, Beside, sent
from tests.support.one_server import OneServer
from tests.support.triton import Triton, post

NEIGHBOUR_S = 3.0  # a tenth of a second on a quiet machine
CHAT = "/v1/chat/completions"
MODELS = ("demo", "padded")  # the in-flight engine behind a front, and the generate engine


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models(*MODELS, "tools")


def endless(depth: int) -> dict[str, Any]:
    """A schema of 3 KB that is never prepared: each of its references doubles the last."""
    chain: dict[str, Any] = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)
    }
    return {"$defs": {**chain, f"d{depth}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def texts_beside(hostile: Beside, triton: Triton, model: str) -> None:
    """What neighbours are answered until the hostile are, each in time."""
    number = 0
    while hostile.is_going_on or number < 3:
        number += 1
        for more in ({}, {"choice": [f"yes {number}", "no"]}):
            began_s = time.monotonic()
            answer = triton.generate(model, text_input="I am going", max_tokens=5, **more)
            taken_s = time.monotonic() - began_s
            assert answer.status == 200, answer.body
            assert taken_s < NEIGHBOUR_S


@pytest.mark.threat("unlimited-answers")
def test_answers_without_a_limit_keep_nobody_waiting_for_their_end(
    triton: Triton, openai_url: str
) -> None:
    """Each goes on to the end of the context, which is far behind a neighbour's few tokens; on the
    generate engine this is tests/model/engine/engines/test_generate_engine.py's.
    """
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": "demo", "messages": messages, "ignore_eos": True}
    hostile = sent(f"{openai_url}{CHAT}", body, {**body, "max_tokens": 32_000})
    time.sleep(0.5)  # until they are being generated
    answer = triton.generate("demo", text_input="I am going", max_tokens=5)
    assert answer.status == 200, answer.body
    assert not hostile.answers, "the neighbour comes first"
    hostile.wait()
    assert [one.status for one in hostile.answers] == [200, 200]
    choices = [one.body["choices"][0] for one in hostile.answers]
    assert {one["finish_reason"] for one in choices} == {"length"}
    used = {one.body["usage"]["total_tokens"] for one in hostile.answers}
    assert len(used) == 1, "both end with the context"


@pytest.mark.threat("endless-grammars")
@pytest.mark.parametrize("model", MODELS)
def test_schemas_that_are_never_prepared_delay_nobody_by_any_door(
    triton: Triton, openai_url: str, model: str
) -> None:
    """For max_grammar_s, 10 s; the others go on in the meantime."""
    bodies = [{"text_input": "I am", "json_schema": json.dumps(endless(40 + i))} for i in range(6)]
    direct = sent(triton.url(model, "generate"), *bodies)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": endless(50)}}
    tool = {"type": "function", "function": {"name": "x", "parameters": endless(51)}}
    asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    through = sent(f"{openai_url}{CHAT}", {**asked, "response_format": form})
    texts_beside(direct, triton, model)
    texts_beside(through, triton, model)
    said = sorted(answer.body["error"] for answer in direct.answers)
    assert {answer.status for answer in direct.answers} == {400}  # as /generate says all errors
    assert sum("takes more than 10 s" in text for text in said) <= 1
    assert [answer.status for answer in through.answers] in ([400], [503])
    by_tool = sent(
        f"{openai_url}{CHAT}",
        {**asked, "model": "tools", "tools": [tool], "tool_choice": "required"},
    )
    texts_beside(by_tool, triton, model)
    assert [answer.status for answer in by_tool.answers] in ([400], [503])
    assert "tools: " in json.dumps(by_tool.answers[0].body)


@pytest.mark.threat("kept-responses")
def test_kept_responses_delay_nobody(triton: Triton, openai_url: str) -> None:
    """Items that no prompt shows may be long; each request has them read again."""
    url = f"{openai_url}/v1/responses"
    thoughts = {"type": "reasoning", "summary": [[]] * 80_000, "encrypted_content": "x" * 2**23}
    said = {"role": "user", "content": "Hello"}
    asked: dict[str, Any] = {"model": "demo", "max_output_tokens": 2}
    neighbour = {**asked, "input": "Hello", "store": False}

    def taken_s() -> float:
        began_s = time.monotonic()
        assert post(url, neighbour, PATIENCE_S).status == 200
        return time.monotonic() - began_s

    alone_s = statistics.median(taken_s() for _ in range(9))
    before = None
    for _ in range(3):
        body = {**asked, "input": [thoughts, said], "previous_response_id": before}
        before = post(url, body, PATIENCE_S).body["id"]
    hostile = sent(url, *[{**asked, "input": "Hi", "previous_response_id": before}] * 8)
    beside_s = [taken_s()]
    while hostile.is_going_on:
        beside_s.append(taken_s())
    assert {answer.status for answer in hostile.answers} == {200}
    assert statistics.median(beside_s) < 60 * alone_s

"""What each kind of server is sent and what counts as its right answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perf.load.http import Response, Target
from perf.load.loop import AnswerError
from perf.load.requests import Request
from perf.load.targets import (
    COMPLETIONS,
    IN_FLIGHT,
    MLSERVER,
    PROMPT,
    SSE,
    TUTORIAL,
    VLLM,
    VLLM_STREAM,
)
from tests.unit.perf.load.test_http import REFUSED, received, stream

REQUEST = Request(index=0, prompt="baca bada", num_prompt_tokens=2, max_tokens=3)


def num_tokens_of(target: Target, answer: object) -> int:
    """Tokens of an answer that comes at once."""
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return target.read(REQUEST, received(head + body)).num_output_tokens


def outputs(**values: object) -> dict[str, Any]:
    return {"outputs": [{"name": name, "data": [value]} for name, value in values.items()]}


def sent(target: Target) -> dict[str, Any]:
    body = target.body(REQUEST)
    assert not isinstance(body, str)
    return dict(body)


def test_the_tutorial_model_is_sent_a_batch_of_one_prompt() -> None:
    assert sent(TUTORIAL) == {
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["baca bada"]}
        ]
    }


def test_the_engine_is_asked_for_exactly_the_wanted_tokens() -> None:
    inputs = {i["name"]: i["data"][0] for i in sent(IN_FLIGHT)["inputs"]}
    assert inputs == {"text_input": "baca bada", "max_tokens": 3, "return_num_output_tokens": True}


def test_the_tutorial_answer_holds_the_prompt_and_the_longest_output() -> None:
    answer = outputs(text_output=" ".join(["baca"] * 130))
    assert num_tokens_of(TUTORIAL, answer) == 128
    with pytest.raises(AnswerError, match="got 1 output tokens, expected 128"):
        num_tokens_of(TUTORIAL, outputs(text_output="a b c"))


@pytest.mark.parametrize("text,num_tokens", [("a b c", 2), ("a b", 3)])
def test_text_and_count_must_both_be_as_asked(text: str, num_tokens: int) -> None:
    answer = outputs(text_output="a b c", num_output_tokens=3)
    assert num_tokens_of(IN_FLIGHT, answer) == 3
    with pytest.raises(AnswerError, match="got 2 output tokens, expected 3"):
        num_tokens_of(IN_FLIGHT, outputs(text_output=text, num_output_tokens=num_tokens))


def completion(text: str, num_prompt_tokens: int = 2, num_tokens: int = 3) -> dict[str, Any]:
    usage = {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens}
    return {"choices": [{"text": text}], "usage": usage}


def test_vllm_is_asked_for_exactly_the_wanted_tokens() -> None:
    asked = {"prompt": "baca bada", "max_tokens": 3, "temperature": 0}
    assert sent(COMPLETIONS) == asked
    assert sent(VLLM) == {**asked, "ignore_eos": True}


def test_prompt_and_completion_must_be_as_long_as_asked_by_count_and_by_words() -> None:
    assert num_tokens_of(VLLM, completion("a b c")) == 3
    for wrong, message in (
        (completion("a b c", num_prompt_tokens=3), "it read 3 prompt tokens, expected 2"),
        (completion("a b"), "got 2 output tokens, expected 3"),
        (completion("a b c", num_tokens=4), "got 4 output tokens, expected 3"),
    ):
        with pytest.raises(AnswerError, match=message):
            num_tokens_of(VLLM, wrong)


def test_mlserver_is_asked_for_one_length_and_answers_json_within_json() -> None:
    inputs = {i["name"]: i["data"][0] for i in sent(MLSERVER)["inputs"]}
    assert (inputs["array_inputs"], inputs["max_new_tokens"]) == ("baca bada", "128")
    text = " ".join(["baca"] * 128)
    for answer in ([{"generated_text": text}], {"generated_text": text}):
        assert num_tokens_of(MLSERVER, outputs(output=json.dumps(answer))) == 128


def test_an_app_answers_the_wanted_words() -> None:
    assert sent(PROMPT) == {"prompt": "baca bada", "max_new_tokens": 3}
    assert num_tokens_of(PROMPT, {"generated_text": " a b c"}) == 3


def answered(*texts: str) -> Response:
    return received(stream(*(f'{{"model_name":"m","text_output":"{text}"}}' for text in texts)))


def test_the_words_of_all_chunks_are_counted_and_each_has_a_time() -> None:
    answer = SSE.read(REQUEST, answered(" baca", " bada bafa"))
    assert (answer.num_output_tokens, answer.chunk_s) == (3, [0.0, 0.0])


def test_too_few_words_an_error_event_and_a_refusal_are_bad_answers() -> None:
    with pytest.raises(AnswerError, match="got 1 output tokens, expected 3"):
        SSE.read(REQUEST, answered(" baca"))
    with pytest.raises(AnswerError, match="time is up"):
        SSE.read(REQUEST, received(stream('{"error":"time is up"}')))
    with pytest.raises(AnswerError, match=r"HTTP 503: .*full"):
        SSE.read(REQUEST, received(REFUSED))


def completed(*chunks: str) -> Response:
    return received(stream(*chunks, "[DONE]"))


TEXT = '{{"choices":[{{"text":"{}"}}]}}'
USAGE = '{"choices":[],"usage":{"completion_tokens":3}}'


def test_a_streamed_completion_is_counted_by_its_words_and_by_the_server() -> None:
    answer = VLLM_STREAM.read(REQUEST, completed(TEXT.format(" baca"), TEXT.format(" b c"), USAGE))
    assert (answer.num_output_tokens, answer.chunk_s) == (3, [0.0, 0.0])
    with pytest.raises(AnswerError, match="got 1 output tokens, expected 3"):
        VLLM_STREAM.read(REQUEST, completed(TEXT.format(" baca"), USAGE))
    with pytest.raises(AnswerError, match="ended without its count of tokens"):
        VLLM_STREAM.read(REQUEST, completed(TEXT.format(" a b c")))

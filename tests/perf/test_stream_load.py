"""What is sent as a stream's request, and what counts as its right answer."""

from __future__ import annotations

import pytest

from perf.load.closed_loop import AnswerError
from perf.load.requests import Request
from perf.load.sse import Response
from perf.load.stream_load import infer_request, read_answer
from tests.perf.test_sse import REFUSED, received, stream

REQUEST = Request(index=0, prompt="baca bada", num_prompt_tokens=2, max_tokens=3)


def answered(*texts: str) -> Response:
    return received(stream(*(f'{{"model_name":"m","text_output":"{text}"}}' for text in texts)))


def test_the_words_of_all_chunks_are_counted_and_each_has_a_time() -> None:
    answer = read_answer(answered(" baca", " bada bafa"), REQUEST)
    assert (answer.num_output_tokens, answer.chunk_s) == (3, [0.0, 0.0])


def test_too_few_words_an_error_event_and_a_refusal_are_bad_answers() -> None:
    with pytest.raises(AnswerError, match="got 1 output tokens, expected 3"):
        read_answer(answered(" baca"), REQUEST)
    with pytest.raises(AnswerError, match="time is up"):
        read_answer(received(stream('{"error":"time is up"}')), REQUEST)
    with pytest.raises(AnswerError, match=r"HTTP 503: .*full"):
        read_answer(received(REFUSED), REQUEST)


def test_a_grpc_request_streams_the_text_alone() -> None:
    message = infer_request("front_stream", REQUEST)
    assert message.model_name == "front_stream"
    assert [output.name for output in message.outputs] == ["text_output"]
    sent = {i.name: raw for i, raw in zip(message.inputs, message.raw_input_contents, strict=True)}
    assert sent == {
        "text_input": b"\x09\0\0\0baca bada",
        "max_tokens": b"\x03\0\0\0",
        "stream": b"\x01",
    }

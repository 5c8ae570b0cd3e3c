"""What is sent as a stream's request, and what counts as its right answer."""

from __future__ import annotations

import pytest

from perf.load.closed_loop import AnswerError
from perf.load.requests import Request
from perf.load.sse import Response
from perf.load.stream_load import infer_request, read_answer, read_completion
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


def completed(*chunks: str) -> Response:
    return received(stream(*chunks, "[DONE]"))


TEXT = '{{"choices":[{{"text":"{}"}}]}}'
USAGE = '{"choices":[],"usage":{"completion_tokens":3}}'


def test_a_streamed_completion_is_counted_by_its_words_and_by_the_server() -> None:
    answer = read_completion(completed(TEXT.format(" baca"), TEXT.format(" b c"), USAGE), REQUEST)
    assert (answer.num_output_tokens, answer.chunk_s) == (3, [0.0, 0.0])
    with pytest.raises(AnswerError, match="got 1 output tokens, expected 3"):
        read_completion(completed(TEXT.format(" baca"), USAGE), REQUEST)
    with pytest.raises(AnswerError, match="ended without its count of tokens"):
        read_completion(completed(TEXT.format(" a b c")), REQUEST)

"""What each service is sent, and which answers count as right."""

from __future__ import annotations

import json
import math

import pytest

from perf.encoders.check import SIZE, Check
from perf.encoders.targets import (
    APP,
    HTTP_TARGETS,
    MLSERVER,
    OURS,
    mean_of_tokens,
    mlserver_body,
    triton_body,
)
from perf.load.closed_loop import AnswerError
from perf.load.requests import Request

REQUEST = Request(index=0, prompt="baca", num_prompt_tokens=3, max_tokens=0)
DOCUMENT = Request(index=0, prompt="baca", num_prompt_tokens=1000, max_tokens=0)
EMBEDDING = [1 / math.sqrt(SIZE)] * SIZE
OTHER = [-x for x in EMBEDDING[:100]] + EMBEDDING[100:]


def triton_answer(embedding: list[float]) -> bytes:
    return json.dumps({"outputs": [{"name": "embedding", "data": embedding}]}).encode()


def app_answer(embedding: list[float]) -> bytes:
    return json.dumps({"embedding": embedding}).encode()


def mlserver_answer(embedding: list[float]) -> bytes:
    """Three tokens and one of padding."""
    vectors = [[2 * x for x in embedding], embedding, [3 * x for x in embedding], [9.0] * SIZE]
    return json.dumps({"outputs": [{"data": [json.dumps([vectors])]}]}).encode()


ANSWERS = {OURS: triton_answer, APP: app_answer, MLSERVER: mlserver_answer}


@pytest.mark.parametrize("target", ANSWERS)
def test_a_right_embedding_is_taken_and_another_refused(target: str) -> None:
    check, answer = Check({0: EMBEDDING}, min_cosine=0.999), ANSWERS[target]
    HTTP_TARGETS[target].check(REQUEST, answer(EMBEDDING), check)
    with pytest.raises(AnswerError, match=r"cosine to the reference 0\.4"):
        HTTP_TARGETS[target].check(REQUEST, answer(OTHER), check)


@pytest.mark.parametrize("target", ANSWERS)
def test_an_embedding_of_another_size_is_refused(target: str) -> None:
    with pytest.raises(AnswerError, match=r"got \d+ numbers, expected 384"):
        HTTP_TARGETS[target].check(REQUEST, ANSWERS[target]([0.5] * 4), Check({}, 0.999))


@pytest.mark.parametrize("target", [OURS, APP])
def test_an_embedding_that_is_not_normalized_is_refused(target: str) -> None:
    answer = ANSWERS[target]([1.0] * SIZE)
    with pytest.raises(AnswerError, match=r"length 19\.596, expected 1"):
        HTTP_TARGETS[target].check(REQUEST, answer, Check({}, 0.999))


def test_padding_is_not_part_of_the_mean() -> None:
    assert mean_of_tokens(mlserver_answer(EMBEDDING), 3) == pytest.approx(EMBEDDING)


def test_only_what_is_too_long_is_to_be_truncated() -> None:
    assert [tensor["name"] for tensor in triton_body(REQUEST)["inputs"]] == ["text_input"]
    names = [tensor["name"] for tensor in triton_body(DOCUMENT)["inputs"]]
    assert names == ["text_input", "truncate"]


def test_mlserver_is_sent_an_input_that_it_can_batch() -> None:
    (sent,) = mlserver_body(REQUEST)["inputs"]
    assert (sent["name"], sent["shape"], sent["data"]) == ("array_inputs", [1], ["baca"])

"""``/v1/embeddings``: what Triton is asked, and what the client is answered."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from tests.support.triton import eventually
from tests.unit.openai_api.conftest import Starter, Translator
from tests.unit.openai_api.fake_triton import Model


def embed(api: Translator, value: object, **body: object) -> Any:
    reply = api.post("/v1/embeddings", **{"model": "vectors", "input": value, **body})
    assert reply.status == 200, reply.text
    return reply.body


def vector(text: str) -> list[float]:
    """The fake Triton's embedding of a text."""
    return [len(text), ord(text[0]), 0.5]


def test_a_text_and_a_list_of_texts_are_one_request(api: Translator) -> None:
    body = embed(api, "two words")
    assert body == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": vector("two words")}],
        "model": "vectors",
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    texts = ["a", "bcd", "e f g"]
    body = embed(api, texts, user="somebody")
    assert [row["embedding"] for row in body["data"]] == [vector(text) for text in texts]
    assert [row["index"] for row in body["data"]] == [0, 1, 2]
    assert body["usage"]["total_tokens"] == 5
    last = api.triton.encoder_requests[-1]
    shapes = [(tensor.name, list(tensor.shape)) for tensor in last.inputs]
    assert shapes == [("input_text", [3]), ("return_num_input_tokens", [1])]
    assert last.parameters["user"].string_param == "somebody"


def test_base64_is_the_vectors_own_bytes(api: Translator) -> None:
    body = embed(api, ["abc"], encoding_format="base64")
    data = base64.b64decode(body["data"][0]["embedding"])
    assert list(struct.unpack("<3f", data)) == vector("abc")


def test_a_model_with_batches_gets_no_more_rows_than_it_takes(api: Translator) -> None:
    before = len(api.triton.encoder_requests)
    texts = [f"{'x' * length}" for length in range(1, 11)]
    body = embed(api, texts, model="rows", dimensions=3)
    assert [row["embedding"] for row in body["data"]] == [vector(text) for text in texts]
    asked = api.triton.encoder_requests[before:]
    shapes = {(t.name, tuple(t.shape)) for request in asked for t in request.inputs}
    assert shapes == {
        *(("text_input", (rows, 1)) for rows in (2, 4)),
        *(("dimensions", (rows, 1)) for rows in (2, 4)),
        *(("return_num_input_tokens", (rows, 1)) for rows in (2, 4)),
    }


QUERY = {"dimensions": 2, "truncate": True, "prompt_name": "query"}
TENSORS = {"dimensions": b"\2\0\0\0", "truncate": b"\1", "prompt_name": b"\5\0\0\0query"}


@pytest.mark.parametrize(
    "sent, tensors, use",
    [
        (QUERY, TENSORS, None),
        ({"truncate": "END", "input_type": "passage"}, {"truncate": b"\1"}, "search_document"),
        ({"truncate": "NONE", "input_type": "query"}, {"truncate": b"\0"}, "search_query"),
    ],
    ids=str,
)
def test_options_and_the_words_of_nim_reach_the_model(
    api: Translator, sent: dict[str, Any], tensors: dict[str, bytes], use: str | None
) -> None:
    embed(api, "x", **sent)
    request = api.triton.encoder_requests[-1]
    names = [tensor.name for tensor in request.inputs]
    found = dict(zip(names, request.raw_input_contents, strict=True))
    assert found.items() >= tensors.items()
    assert {*found} == {"input_text", "return_num_input_tokens", *tensors}
    assert (request.parameters["input_type"].string_param or None) == use


def test_text_embeddings_inference_answers_a_bare_list(starter: Starter) -> None:
    api = starter.api(Model("vectors", "whole", task="feature-extraction"))
    found = api.post("/embed", inputs=["two", "a"], normalize=False).body
    assert found == [vector("two"), vector("a")]
    names = [tensor.name for tensor in api.triton.encoder_requests[-1].inputs]
    assert "truncate" in names, "it cuts unless told not to"
    [row] = api.post("/embed", inputs="two").body
    assert sum(one * one for one in row) == pytest.approx(1)
    assert api.post("/embed", inputs=5).body["error"].startswith("inputs: got 5")


def test_a_missing_vector_is_an_error(api: Translator) -> None:
    api.triton.most_answered = 1
    try:
        reply = api.post("/v1/embeddings", model="vectors", input=["a", "b"])
    finally:
        api.triton.most_answered = 10**6
    assert reply.status == 500
    assert "answered 1 of 2 texts" in reply.error["message"]


def test_the_first_error_ends_the_other_requests(api: Translator) -> None:
    api.triton.num_waiting_at_errors = 1
    reply = api.post(
        "/v1/embeddings", model="rows", input=["!waits", "b", "c", "d", "!503", "f", "g", "h"]
    )
    assert reply.status == 503
    assert eventually(lambda: api.triton.left == ["!waits"])


def test_an_error_of_the_model_names_the_callers_field(api: Translator) -> None:
    reply = api.post("/v1/embeddings", model="vectors", input="!400")
    assert (reply.status, reply.error["param"]) == (400, "input")
    assert reply.error["message"].startswith("input: got 900 tokens, this model takes at most 512")

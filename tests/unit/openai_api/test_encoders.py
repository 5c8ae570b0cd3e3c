"""Embeddings, rankings, scores and labels, by OpenAI's, vLLM's, NVIDIA's and TEI's paths."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from hf_triton.ports.openai.routes.answers import Usage
from hf_triton.ports.openai.routes.encoders.endpoint import Answers
from hf_triton.ports.openai.routes.encoders.rankings import RERANK, ScoreRequest
from hf_triton.ports.openai.schema.errors import ApiError
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


OF_A_QUERY = {"dimensions": 2, "truncate": True, "prompt_name": "query"}
TENSORS = {"dimensions": b"\2\0\0\0", "truncate": b"\1", "prompt_name": b"\5\0\0\0query"}


@pytest.mark.parametrize(
    "sent, tensors, use",
    [
        (OF_A_QUERY, TENSORS, None),
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


RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank")
QUERY = "a cat sleeps"
DOCUMENTS = ["the sun", "a cat sleeps here", "one cat", "no dog", "a dog sleeps"]
SHARED = [0, 3, 1, 0, 2]  # words that each has with the query


def answer(api: Translator, path: str, **body: object) -> Any:
    reply = api.post(path, **body)
    assert reply.status == 200, reply.text
    return reply.body


def rerank(api: Translator, path: str = "/v1/rerank", **body: object) -> Any:
    given = {"model": "pairs", "query": QUERY, "documents": DOCUMENTS, **body}
    return answer(api, path, **given)


@pytest.mark.parametrize("path", RERANKS)
def test_documents_come_the_best_first_and_as_they_were(path: str, api: Translator) -> None:
    body = rerank(api, path)
    assert body.pop("id").startswith("rerank-")
    num_tokens = sum(3 + len(document.split()) for document in DOCUMENTS)
    assert body == {
        "model": "pairs",
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        "results": [
            {
                "index": index,
                "relevance_score": SHARED[index] / 2,
                "document": {"text": DOCUMENTS[index]},
            }
            for index in (1, 4, 2, 0, 3)
        ],
    }


def test_a_model_with_batches_gets_no_more_rows_than_it_takes(api: Translator) -> None:
    found = rerank(api, model="pair_rows", truncate_prompt_tokens=-1)["results"]
    assert [result["index"] for result in found] == [1, 4, 2, 0, 3]
    shapes = [
        (tensor.name, list(tensor.shape))
        for request in api.triton.encoder_requests
        for tensor in request.inputs
    ]
    names = ("text_input", "text_pair", "truncate")
    assert sorted(shapes) == [(name, [rows, 1]) for name in names for rows in (1, 4)]


def test_only_as_many_as_asked_for_are_answered_and_without_documents(api: Translator) -> None:
    found = rerank(api, top_n=2, return_documents=False)["results"]
    assert found == [{"index": 1, "relevance_score": 1.5}, {"index": 4, "relevance_score": 1.0}]
    assert len(rerank(api, top_n=0)["results"]) == len(rerank(api, top_n=9)["results"]) == 5


def test_equal_documents_have_equal_scores_in_the_order_they_came() -> None:
    """A text's numbers differ in their last bits if it is computed beside longer ones."""
    asked = RERANK.read({"model": "m", "query": "q", "documents": ["a", "b", "a"]})
    rows = {"score": [[0.5], [0.7], [0.50000003]], "logits": [[0.0]] * 3}
    results = asked.write(Answers(rows, Usage(0, 0))).results
    assert [(one.index, one.relevance_score) for one in results] == [
        *((1, 0.7), (0, 0.5), (2, 0.5)),
    ]


@pytest.mark.parametrize(
    "truncate, cuts", [({}, None), ({"truncate": "END"}, b"\x01"), ({"truncate": "NONE"}, b"\x00")]
)
def test_nvidias_rerankers_are_asked_for_logits(
    truncate: dict[str, str], cuts: bytes | None, api: Translator
) -> None:
    """With what NVIDIARerank of langchain-nvidia-ai-endpoints and of LlamaIndex sends."""
    passages = [{"text": document} for document in DOCUMENTS]
    body = {"model": "pairs", **truncate, "query": {"text": QUERY}, "passages": passages}
    found = answer(api, "/v1/ranking", **body)
    assert found["rankings"] == [{"index": n, "logit": SHARED[n]} for n in (1, 4, 2, 0, 3)]
    request = api.triton.encoder_requests[-1]
    sent = dict(zip((one.name for one in request.inputs), request.raw_input_contents, strict=True))
    assert sent.get("truncate") == cuts


def test_an_embedding_model_scores_pairs_by_itself(api: Translator) -> None:
    found = rerank(api, model="vectors", query="two", documents=["a", "bcd"])["results"]
    assert [(one["index"], one["relevance_score"]) for one in found] == [(1, 9), (0, 3)]
    assert {one.name for one in api.triton.encoder_requests[-1].outputs} == {
        *("score", "num_input_tokens"),
    }


def test_weights_of_words_and_vectors_of_tokens_come_without_what_fills_rows(
    api: Translator,
) -> None:
    asked = {"inputs": ["a b", "c"]}
    found = answer(api, "/models/vectors/embed_sparse", **asked)
    assert found == [[{"index": 2, "value": 2}], [{"index": 1, "value": 1}]]
    found = answer(api, "/models/vectors/embed_all", **asked, input_type="query")
    assert found == [[[1, 1], [1, 1]], [[1, 1]]]
    request = api.triton.encoder_requests[-1]
    assert request.parameters["input_type"].string_param == "search_query"


def test_a_document_may_be_an_object_with_its_text(api: Translator) -> None:
    document = {"text": "a cat", "title": "kept"}
    [found] = rerank(api, documents=[document])["results"]
    assert found == {"index": 0, "relevance_score": 1.0, "document": document}


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_keep_the_order_of_the_pairs(path: str, api: Translator) -> None:
    body = answer(api, path, model="pairs", text_1=QUERY, text_2=DOCUMENTS)
    assert body["data"] == [
        {"index": index, "object": "score", "score": shared / 2}
        for index, shared in enumerate(SHARED)
    ]
    assert body["object"] == "list"
    assert body["id"].startswith("score-")
    body = answer(
        api, path, model="pairs", text_1=DOCUMENTS, text_2=DOCUMENTS, use_activation=False
    )
    assert [one["score"] for one in body["data"]] == [2, 4, 2, 2, 3]


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_probabilities_are_in_the_order_of_the_labels(path: str, api: Translator) -> None:
    body = answer(api, path, model="labels", input=["four", ""])
    assert [(one["label"], one["probs"]) for one in body["data"]] == [
        ("c", [0, 0.5, 2]),
        ("c", [0, 0.5, 0]),
    ]
    assert {one["num_classes"] for one in body["data"]} == {3}
    assert body["usage"] == {"prompt_tokens": 1, "total_tokens": 1}
    assert body["id"].startswith("classify-")


def test_tei_ranks_its_texts_by_themselves(api: Translator) -> None:
    """At the same path as Cohere's documents."""
    found = answer(api, "/rerank", model="pairs", query=QUERY, texts=DOCUMENTS)
    assert found == [{"index": n, "score": SHARED[n] / 2} for n in (1, 4, 2, 0, 3)]
    asks = {"query": QUERY, "texts": DOCUMENTS[:2], "raw_scores": True, "return_text": True}
    found = answer(api, "/models/pairs/rerank", **asks)
    assert found == [{"index": n, "score": SHARED[n], "text": DOCUMENTS[n]} for n in (1, 0)]
    assert answer(api, "/models/pairs/rerank", query="a", documents=["a"])["model"] == "pairs"


LABELS = [{"label": "c", "score": 2}, {"label": "b", "score": 0.5}, {"label": "a", "score": 0}]


def test_tei_predicts_of_texts_and_of_pairs(api: Translator) -> None:
    path = "/models/labels/predict"
    assert answer(api, path, inputs="four") == answer(api, path, inputs=["four"]) == LABELS
    assert answer(api, path, inputs=[["four"], ["four"]], truncate=False) == [LABELS, LABELS]
    assert answer(api, "/models/labels", inputs="four") == [LABELS], "as the Hub does it"
    path = "/models/pairs/predict"
    assert answer(api, path, inputs=["a b", "b"]) == [{"label": "RELEVANT", "score": 0.5}]
    found = answer(api, path, inputs=[["a b", "b"], ["a", "c"]], raw_scores=True)
    assert [[one["score"] for one in row] for row in found] == [[1], [0]]


def test_the_hubs_parameters_reach_a_classifier(api: Translator) -> None:
    parameters = {"top_k": 1, "function_to_apply": "none"}
    answer(api, "/models/labels", inputs="four", parameters=parameters)
    names = [one.name for one in api.triton.encoder_requests[-1].inputs]
    assert names == ["input_text", "truncate", "top_k", "function_to_apply"]


RANKING = {"model": "pairs", "query": "a", "documents": ["b"]}
PAIR = {"model": "pairs", "text_1": "a", "text_2": "b"}


@pytest.mark.parametrize("field, told", [("text_input", "text_1"), ("text_pair", "text_2")])
def test_an_error_of_a_part_names_the_text_of_the_whole(field: str, told: str) -> None:
    asked = ScoreRequest(model="pairs", text_1=["a"] * 10, text_2=["b"] * 10)
    error = ApiError(400, f"{field}: too long (row 3 of the batch)", field)
    renamed = asked.renamed(error, 4)
    assert renamed.message.startswith(f"{told}: too long (row 7 of the batch)")
    assert renamed.param == told.partition(":")[0]


@pytest.mark.parametrize(
    "path, model, tasks",
    [
        ("/v1/rerank", "echo", "text-classification, feature-extraction"),
        ("/score", "hears", "text-classification, feature-extraction"),
        ("/classify", "vectors", "text-classification"),
        ("/v1/embeddings", "pairs", "feature-extraction"),
    ],
)
def test_a_model_of_another_task_is_told_which_have_the_path(
    path: str, model: str, tasks: str, api: Translator
) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/classify": {"input": "a"},
        "/v1/embeddings": {"input": "a"},
    }
    body = {**bodies, "/score": PAIR}.get(path, RANKING)
    reply = api.post(path, **{**body, "model": model})
    assert (reply.status, reply.error["param"]) == (404, "model")
    assert reply.error["code"] == "model_not_found"
    assert f"allowed here ({tasks}): " in reply.error["message"]

"""Text classification answers what transformers' own pipeline does, and says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from stub_server import StubServer
from wire import Reply

from hf_triton.encoder.sentence_transformers.reading import SentenceFiles
from hf_triton.text_classification.classification import default_function
from tests.model.encoders.tasks import labelled, model_of
from tests.support.served_encoder import assert_same, outputs_of, pipeline, request, served
from tests.support.tiny_encoders import texts

TASK = "text-classification"
TEXTS = texts(9)
PAIRS = list(zip(texts(7, longest=40), texts(7, longest=40, seed=5)[::-1], strict=True))


def ranked(reply: Reply) -> list[dict[str, Any]]:
    """An answer as the pipeline gives it."""
    outputs = outputs_of(reply)
    assert outputs["score"].dtype == np.float32
    scores = outputs["score"].tolist()
    pairs = zip(reply.texts("label"), scores, strict=True)
    return [{"label": label, "score": score} for label, score in pairs]


def test_texts_and_pairs_of_one_batch_score_as_in_transformers(
    server: StubServer, model: Path
) -> None:
    reference = pipeline(TASK, model)
    asked = [request(text_input=text, top_k=-1) for text in TEXTS]
    asked += [request(text_input=one, text_pair=two, top_k=-1) for one, two in PAIRS]
    got = [ranked(pending.reply()) for pending in server.send_together(asked)]
    inputs = [*TEXTS, *({"text": one, "text_pair": two} for one, two in PAIRS)]
    for one, text in zip(got, inputs, strict=True):
        assert_same(one, reference(text, top_k=None))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"problem_type": "multi_label_classification"},
        {"problem_type": "regression"},
        labelled("relevance"),
        {**labelled("stars"), "problem_type": "regression"},
    ],
    ids=["single-label", "multi-label", "regression", "reranker", "one-number"],
)
def test_the_function_is_the_problem_types(config: dict[str, Any], tmp_path: Path) -> None:
    model = model_of(TASK, tmp_path / "model", **config)
    reference = pipeline(TASK, model)
    with served(tmp_path, TASK, model) as server:
        for text in TEXTS[:3]:
            got = ranked(server.infer(request(text_input=text, top_k=-1)))
            assert_same(got, reference(text, top_k=None))
        for function in ("softmax", "sigmoid", "none"):
            asked = request(text_input=TEXTS[0], top_k=-1, function_to_apply=function)
            expected = reference(TEXTS[0], top_k=None, function_to_apply=function)
            assert_same(ranked(server.infer(asked)), expected)


def test_the_activation_that_older_releases_saved_is_followed() -> None:
    name = "torch.nn.modules.linear.Identity"
    saved: dict[str, Any] = {"sbert_ce_default_activation_function": name, "num_labels": 1}
    config = transformers.PretrainedConfig(**saved)
    assert isinstance(default_function(config, SentenceFiles(Path())), torch.nn.Identity)


def test_one_label_is_answered_unless_more_are_asked_for(server: StubServer) -> None:
    sizes = {None: 1, 1: 1, 2: 2, 3: 3, 50: 3, -1: 3}
    for top_k, size in sizes.items():
        asked: dict[str, Any] = {} if top_k is None else {"top_k": top_k}
        outputs = outputs_of(server.infer(request(text_input=TEXTS[4], **asked)))
        assert outputs["label"].shape == outputs["score"].shape == (size,)
        assert outputs["logits"].shape == (3,)
        assert outputs["score"].tolist() == sorted(outputs["score"].tolist(), reverse=True)


def test_logits_are_the_models_in_its_own_order(server: StubServer, model: Path) -> None:
    expected = pipeline(TASK, model)(TEXTS[2], top_k=None, function_to_apply="none")
    by_label = {one["label"]: one["score"] for one in expected}
    logits = outputs_of(server.infer(request(text_input=TEXTS[2])))["logits"]
    np.testing.assert_allclose(
        logits, [by_label[label] for label in ("bad", "fair", "good")], atol=1e-4
    )


def test_each_pair_of_a_list_is_answered_as_if_alone(server: StubServer) -> None:
    pairs = [outputs_of(server.infer(request(text_input=a, text_pair=b))) for a, b in PAIRS]
    firsts, seconds = ([pair[side] for pair in PAIRS] for side in (0, 1))
    got = outputs_of(server.infer(request(input_text=firsts, text_pair=seconds)))
    for name, rows_of_output in got.items():
        expected = np.stack([pair[name] for pair in pairs])
        assert rows_of_output.shape == expected.shape
        if name != "label":
            np.testing.assert_allclose(rows_of_output, expected, atol=1e-4)
    alone = outputs_of(server.infer(request(text_input=firsts[0], text_pair=seconds[1])))
    one = outputs_of(server.infer(request(input_text=firsts[:1] * 7, text_pair=seconds)))
    np.testing.assert_allclose(one["logits"][1], alone["logits"], atol=1e-4)
    all_one = outputs_of(server.infer(request(input_text=firsts, text_pair=seconds[1])))
    np.testing.assert_allclose(all_one["logits"][0], alone["logits"], atol=1e-4)


def test_tokens_of_a_pair_are_counted(server: StubServer, model: Path) -> None:
    ids = pipeline(TASK, model).tokenizer("a cat", "a dog sat")["input_ids"]
    outputs = outputs_of(server.infer(request(text_input="a cat", text_pair="a dog sat")))
    assert outputs["num_input_tokens"].tolist() == [len(ids)]
    assert outputs["truncated"].tolist() == [False]
    long = request(text_input="a cat", text_pair="a dog sat " * 90, truncate=True)
    assert outputs_of(server.infer(long))["truncated"].tolist() == [True]

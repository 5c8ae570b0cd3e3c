"""Text classification answers what transformers' own pipeline does, and says what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stub_server import StubServer
from triton_python_backend_utils import TritonModelException
from wire import Reply, Request

from hf_triton.text_classification.options import Options
from tests.support.served_encoder import outputs_of, pipeline, refused, request, rows, served
from tests.support.tiny_encoders import texts, tiny_encoder

TASK = "text-classification"
LABELS = {0: "bad", 1: "fair", 2: "good"}
TEXTS = texts(9)
PAIRS = list(zip(texts(7, longest=40), texts(7, longest=40, seed=5)[::-1], strict=True))


def classifier(folder: Path, architecture: str = "bert", **config: Any) -> Path:
    labels = {"id2label": LABELS, "label2id": {label: i for i, label in LABELS.items()}}
    return tiny_encoder(
        architecture, "AutoModelForSequenceClassification", folder / "model", **{**labels, **config}
    )


def ranked(reply: Reply) -> list[dict[str, Any]]:
    """An answer as the pipeline gives it."""
    outputs = outputs_of(reply)
    assert outputs["score"].dtype == np.float32
    scores = outputs["score"].tolist()
    pairs = zip(reply.texts("label"), scores, strict=True)
    return [{"label": label, "score": score} for label, score in pairs]


def assert_same(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [one["label"] for one in got] == [one["label"] for one in expected]
    scores = [one["score"] for one in expected]
    np.testing.assert_allclose([one["score"] for one in got], scores, atol=1e-4)


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_texts_and_pairs_of_one_batch_score_as_in_transformers(
    architecture: str, tmp_path: Path
) -> None:
    model = classifier(tmp_path, architecture)
    reference = pipeline(TASK, model)
    with served(tmp_path, TASK, model) as server:
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
        {"num_labels": 1, "id2label": {0: "relevance"}, "label2id": {"relevance": 0}},
        {
            "num_labels": 1,
            "id2label": {0: "stars"},
            "label2id": {"stars": 0},
            "problem_type": "regression",
        },
    ],
    ids=["single-label", "multi-label", "regression", "reranker", "one-number"],
)
def test_the_function_is_the_problem_types(config: dict[str, Any], tmp_path: Path) -> None:
    model = classifier(tmp_path, **config)
    reference = pipeline(TASK, model)
    with served(tmp_path, TASK, model) as server:
        for text in TEXTS[:3]:
            got = ranked(server.infer(request(text_input=text, top_k=-1)))
            assert_same(got, reference(text, top_k=None))
        for function in ("softmax", "sigmoid", "none"):
            asked = request(text_input=TEXTS[0], top_k=-1, function_to_apply=function)
            expected = reference(TEXTS[0], top_k=None, function_to_apply=function)
            assert_same(ranked(server.infer(asked)), expected)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("classifier"))


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
    np.testing.assert_allclose(logits, [by_label[label] for label in LABELS.values()], atol=1e-4)


def test_only_listed_outputs_are_sent(server: StubServer) -> None:
    reply = server.infer(request(("score",), text_input="the cat"))
    assert set(outputs_of(reply)) == {"score"}


def test_flat_json_is_answered_flat(server: StubServer) -> None:
    status, body = server.generate({"text_input": "the cat sat", "top_k": 2})
    assert status == 200
    assert len(body["label"]) == len(body["score"]) == 2
    status, body = server.generate({"text_input": "the cat sat"})
    assert body["label"] in LABELS.values()
    assert 0 < body["score"] < 1


@pytest.mark.parametrize(
    "tensors, parts",
    [
        ({}, ["text_input: missing"]),
        ({"text_pair": "a cat"}, ["text_input: missing", "text_pair"]),
        ({"text_input": ""}, ["text_input: got an empty text"]),
        ({"text_input": " \n"}, ["text_input: got an empty text"]),
        ({"text_input": "a", "text_pair": ""}, ["text_pair: got an empty text"]),
        ({"text_input": b"\xff a"}, ["text_input: not valid UTF-8 at byte 0"]),
        ({"text_input": "a", "top_k": 0}, ["top_k: got 0", "-1 (all labels)"]),
        ({"text_input": "a", "top_k": -2}, ["top_k: got -2"]),
        ({"text_input": "a", "function_to_apply": "sigmoids"}, ["softmax, sigmoid, none"]),
        ({"text_input": "a cat " * 80}, ["text_input: got 162 tokens", "at most 128"]),
        ({"text_input": "a cat " * 40, "text_pair": "a dog " * 40}, ["text_input and text_pair"]),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(
    tensors: dict[str, Any], parts: list[str], server: StubServer
) -> None:
    refused(server, *parts, **tensors)


def test_a_long_text_is_cut_where_the_request_says_so(server: StubServer, model: Path) -> None:
    long = "the big red cat sat on a mat . " * 40
    got = ranked(server.infer(request(text_input=long, truncate=True, top_k=-1)))
    assert_same(got, pipeline(TASK, model)(long, top_k=None, truncation=True))


def test_an_unknown_parameter_is_named(server: StubServer) -> None:
    status, body = server.generate({"text_input": "a cat", "topk": 2})
    assert status == 400
    assert "topk: unknown parameter, did you mean top_k?" in body["error"]


def test_a_bad_request_does_not_touch_its_neighbours(server: StubServer) -> None:
    asked = [request(text_input="a cat"), request(text_input=""), request(text_input="a dog")]
    replies = [pending.reply() for pending in server.send_together(asked)]
    assert [reply.status for reply in replies] == [200, 400, 200]


def test_the_options_change_what_a_request_does_not_say(model: Path, tmp_path: Path) -> None:
    options = {"top_k": 2, "function_to_apply": "sigmoid", "pairs": "required", "truncation": True}
    with served(tmp_path, TASK, model, options=options) as server:
        got = ranked(server.infer(request(text_input="a cat", text_pair="a dog " * 200)))
        refused(server, "text_pair: missing", "text_input", text_input="a cat")
        refused(server, "text_input: missing", "text_pair", text_pair="a cat")
    expected = pipeline(TASK, model)(
        {"text": "a cat", "text_pair": "a dog " * 200},
        top_k=2,
        function_to_apply="sigmoid",
        truncation=True,
    )
    assert_same(got, expected)


def test_a_clients_batch_has_a_row_for_each_text(model: Path, tmp_path: Path) -> None:
    reference = pipeline(TASK, model)
    with served(tmp_path, TASK, model, max_batch_size=8) as server:
        asked = rows(text_input=TEXTS[:3], text_pair=TEXTS[3:6], top_k=[-1, 1, 2])
        outputs = outputs_of(server.infer(asked))
        missing = server.infer(rows(text_pair=TEXTS[:2]))
    assert outputs["label"].shape == outputs["score"].shape == outputs["logits"].shape == (3, 3)
    for row, top_k in enumerate((3, 1, 2)):
        expected = reference({"text": TEXTS[row], "text_pair": TEXTS[row + 3]}, top_k=top_k)
        labels = [label.decode() for label in outputs["label"][row]]
        assert labels == [one["label"] for one in expected] + [""] * (3 - top_k)
        scores = [one["score"] for one in expected] + [0.0] * (3 - top_k)
        np.testing.assert_allclose(outputs["score"][row], scores, atol=1e-4)
    assert missing.status == 400


def test_a_bad_row_of_a_clients_batch_is_named(model: Path, tmp_path: Path) -> None:
    two = TEXTS[:2]
    bad: list[tuple[str, int, dict[str, Any]]] = [
        ("text_input: got an empty text", 1, {"text_input": ["a cat", " "]}),
        ("text_input: got 20", 2, {"text_input": [*two, "cat " * 200]}),
        ("text_pair: got an empty text", 0, {"text_input": two, "text_pair": ["", "a"]}),
        ("top_k: got 0, allowed", 1, {"text_input": two, "top_k": [1, 0]}),
        ("text_input: not valid UTF-8", 1, {"text_input": ["a", b"\xff"]}),
    ]
    whole: list[tuple[str, Request]] = [
        ("text_input: missing, send text_input and text_pair together", rows(text_pair=two)),
        ("text_input: got an empty text", rows(text_input=[""])),
        ("top_k: got 0, allowed", replace(rows(text_input=two), parameters={"top_k": 0})),
    ]
    with served(tmp_path, TASK, model, max_batch_size=8) as server:
        for said, row, tensors in bad:
            reply = server.infer(rows(**tensors))
            assert reply.status == 400
            assert reply.error.startswith(said)
            assert reply.error.endswith(f" (row {row} of the batch)")
        for said, asked in whole:
            reply = server.infer(asked)
            assert reply.status == 400
            assert reply.error.startswith(said)
            assert "of the batch" not in reply.error


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


@pytest.mark.parametrize(
    "tensors, said",
    [
        ({"input_text": ["a", "b"], "text_pair": ["c"] * 3}, "text_pair: got 3 elements, allowed"),
        ({"input_text": ["a", " "]}, "input_text: got an empty text"),
        ({"input_text": ["a"], "text_input": "a"}, "text_input and input_text: got both"),
        ({"text_input": "a", "text_pair": ["b", "c"]}, "text_pair: got 2 elements, allowed: one"),
    ],
)
def test_what_is_wrong_with_a_list_is_named(
    tensors: dict[str, Any], said: str, server: StubServer
) -> None:
    refused(server, said, **tensors)


def test_tokens_of_a_pair_are_counted(server: StubServer, model: Path) -> None:
    ids = pipeline(TASK, model).tokenizer("a cat", "a dog sat")["input_ids"]
    outputs = outputs_of(server.infer(request(text_input="a cat", text_pair="a dog sat")))
    assert outputs["num_input_tokens"].tolist() == [len(ids)]
    assert outputs["truncated"].tolist() == [False]
    long = request(text_input="a cat", text_pair="a dog sat " * 90, truncate=True)
    assert outputs_of(server.infer(long))["truncated"].tolist() == [True]


@pytest.mark.parametrize(
    "config",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    ],
)
def test_a_rerankers_score_is_what_its_own_activation_makes(
    config: dict[str, Any], tmp_path: Path
) -> None:
    labels: dict[str, Any] = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    model = classifier(tmp_path, num_labels=1, **labels, **config)
    with served(tmp_path, TASK, model) as server:
        outputs = outputs_of(server.infer(request(text_input="a cat", text_pair="a dog")))
    np.testing.assert_array_equal(outputs["score"], outputs["logits"])


def test_an_activation_that_is_not_known_is_refused_at_load(tmp_path: Path) -> None:
    labels: dict[str, Any] = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    own = {"activation_fn": "os.system"}
    model = classifier(tmp_path, num_labels=1, **labels, sentence_transformers=own)
    with (
        pytest.raises(TritonModelException, match=r"activation_fn os.system is none of torch.nn"),
        served(tmp_path, TASK, model),
    ):
        pass


def test_an_option_of_no_label_is_a_mistake() -> None:
    assert [name for name, _ in Options(top_k=0).problems()] == ["top_k"]
    assert not Options(top_k=-1).problems()


def test_a_model_without_a_classifier_is_not_loaded(tmp_path: Path) -> None:
    """Transformers would make one up, and answer at random."""
    model = tiny_encoder("roberta", "AutoModelForMaskedLM", tmp_path / "model")
    with (
        pytest.raises(TritonModelException, match=r"no weights for classifier.* text-classif"),
        served(tmp_path, TASK, model),
    ):
        pass

"""Zero-shot classification answers what transformers' own pipeline does, and says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stub_server import StubServer
from triton_python_backend_utils import TritonModelException
from wire import Reply

from hf_triton.runtime import log
from hf_triton.zero_shot_classification.options import Options
from tests.support.served_encoder import outputs_of, pipeline, refused, request, rows, served
from tests.support.tiny_encoders import texts, tiny_encoder

TASK = "zero-shot-classification"
NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}
TEXTS = texts(5, longest=50)
LABELS = ["food", "a big red house", "Paris"]


def nli_model(
    folder: Path, architecture: str = "bert", labels: dict[int, str] | None = None
) -> Path:
    names = labels or NLI
    config = {"id2label": names, "label2id": {label: i for i, label in names.items()}}
    return tiny_encoder(
        architecture, "AutoModelForSequenceClassification", folder / "model", **config
    )


def answer(reply: Reply) -> dict[str, Any]:
    """``output``, after a look at whether ``label`` and ``score`` say the same."""
    outputs = outputs_of(reply)
    (text,) = reply.texts("output")
    found: dict[str, Any] = json.loads(text)
    assert reply.texts("label") == found["labels"]
    np.testing.assert_allclose(outputs["score"], found["scores"], rtol=1e-6)
    return found


def assert_same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert (got["sequence"], got["labels"]) == (expected["sequence"], expected["labels"])
    np.testing.assert_allclose(got["scores"], expected["scores"], atol=1e-4)


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_texts_of_one_batch_score_as_in_transformers(architecture: str, tmp_path: Path) -> None:
    model = nli_model(tmp_path, architecture)
    reference = pipeline(TASK, model)
    ways: list[dict[str, Any]] = [{}, {"multi_label": True}, {"hypothesis_template": "{} is bad"}]
    asked = [(text, way) for text in TEXTS for way in ways]
    with served(tmp_path, TASK, model) as server:
        pending = server.send_together(
            [request(text_input=text, candidate_labels=LABELS, **way) for text, way in asked]
        )
        got = [answer(one.reply()) for one in pending]
    for one, (text, way) in zip(got, asked, strict=True):
        assert_same(one, reference(text, LABELS, **way))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nli_model(tmp_path_factory.mktemp("nli"))


def test_one_text_with_commas_is_a_list_of_labels(server: StubServer, model: Path) -> None:
    reply = server.infer(request(text_input=TEXTS[2], candidate_labels="food, Paris ,, a cat"))
    assert_same(answer(reply), pipeline(TASK, model)(TEXTS[2], "food, Paris ,, a cat"))


def test_one_label_is_weighed_against_its_contradiction(server: StubServer, model: Path) -> None:
    reply = server.infer(request(text_input=TEXTS[2], candidate_labels="food"))
    got = answer(reply)
    assert 0 < got["scores"][0] < 1
    assert_same(got, pipeline(TASK, model)(TEXTS[2], "food"))


def test_labels_in_any_script_come_back_as_they_were(server: StubServer) -> None:
    got = answer(server.infer(request(text_input="a cat", candidate_labels=["größe", "猫"])))
    assert sorted(got["labels"]) == ["größe", "猫"]


def test_only_the_text_is_cut(server: StubServer, model: Path) -> None:
    long = "the big red cat sat on a mat . " * 40
    asked = request(text_input=long, candidate_labels=LABELS, truncate=True)
    assert_same(answer(server.infer(asked)), pipeline(TASK, model)(long, LABELS))


def test_flat_json_takes_a_list_of_labels(server: StubServer) -> None:
    status, body = server.generate({"text_input": "the cat sat", "candidate_labels": LABELS})
    assert status == 200
    assert sorted(body["label"]) == sorted(LABELS)
    assert sum(body["score"]) == pytest.approx(1)


@pytest.mark.threat("empty-texts")
@pytest.mark.parametrize(
    "tensors, parts",
    [
        ({"text_input": "a cat"}, ["candidate_labels: missing", "text_input"]),
        ({"candidate_labels": LABELS}, ["text_input: missing", "candidate_labels"]),
        ({"text_input": "a", "candidate_labels": [""]}, ["candidate_labels: missing"]),
        ({"text_input": "a", "candidate_labels": " , ,"}, ["candidate_labels: missing"]),
        ({"text_input": "a", "candidate_labels": ["b", " "]}, ["candidate_labels: got an empty"]),
        ({"text_input": "", "candidate_labels": "b"}, ["text_input: got an empty text"]),
        (
            {"text_input": "a", "candidate_labels": ["b"] * 1001},
            ["candidate_labels: got 1001 labels, allowed: at most 1000"],
        ),
        (
            {"text_input": "a", "candidate_labels": "b," * 1001},
            ["candidate_labels: got 1002 labels, allowed: at most 1000"],
        ),
        ({"text_input": "a", "candidate_labels": [b"b", b"\xff"]}, ["candidate_labels: not valid"]),
        (
            {"text_input": "a", "candidate_labels": "b", "hypothesis_template": "It is so."},
            ["hypothesis_template: got a text without {}"],
        ),
        (
            {"text_input": "a cat " * 80, "candidate_labels": "b"},
            ["text_input with candidate_labels: got", "at most 128"],
        ),
        (
            {"text_input": "a", "candidate_labels": "a cat " * 80, "truncate": True},
            ["text_input with candidate_labels", "may not be cut"],
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_named(
    tensors: dict[str, Any], parts: list[str], server: StubServer
) -> None:
    refused(server, *parts, **tensors)


def test_rows_of_a_batch_may_have_fewer_labels(model: Path, tmp_path: Path) -> None:
    labels = [["food", "Paris"], ["a cat", ""]]
    with served(tmp_path, TASK, model, max_batch_size=4) as server:
        reply = server.infer(rows(text_input=TEXTS[:2], candidate_labels=labels))
    outputs = outputs_of(reply)
    assert outputs["label"].shape == outputs["score"].shape == (2, 2)
    assert outputs["output"].shape == (2, 1)
    reference = pipeline(TASK, model)
    for row, kept in enumerate((["food", "Paris"], ["a cat"])):
        got = json.loads(outputs["output"][row, 0])
        assert_same(got, reference(TEXTS[row], kept))
    assert (outputs["label"][1, 1], outputs["score"][1, 1]) == (b"", 0)


def test_the_options_change_what_a_request_does_not_say(model: Path, tmp_path: Path) -> None:
    options = {"hypothesis_template": "{} is what it is .", "multi_label": True}
    with served(tmp_path, TASK, model, options=options) as server:
        got = answer(server.infer(request(text_input=TEXTS[1], candidate_labels=LABELS)))
    assert_same(got, pipeline(TASK, model)(TEXTS[1], LABELS, **options))


def test_entailment_first_is_found_by_its_name(tmp_path: Path) -> None:
    model = nli_model(tmp_path, labels={0: "ENTAILMENT", 1: "not_entailment"})
    with served(tmp_path, TASK, model) as server:
        asked = request(text_input=TEXTS[1], candidate_labels=LABELS, multi_label=True)
        got = answer(server.infer(asked))
    assert_same(got, pipeline(TASK, model)(TEXTS[1], LABELS, multi_label=True))


def test_without_a_label_for_entailment_the_last_is_taken_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(log, "warn", lines.append)
    model = nli_model(tmp_path, labels={0: "no", 1: "perhaps", 2: "yes"})
    with served(tmp_path, TASK, model) as server:
        got = answer(server.infer(request(text_input=TEXTS[1], candidate_labels=LABELS)))
    assert any("entail" in line for line in lines)
    assert_same(got, pipeline(TASK, model)(TEXTS[1], LABELS))


def test_a_model_of_one_label_is_not_loaded(tmp_path: Path) -> None:
    model = nli_model(tmp_path, labels={0: "relevance"})
    with (
        pytest.raises(TritonModelException, match="natural language inference"),
        served(tmp_path, TASK, model),
    ):
        pass


def test_a_template_without_a_place_for_the_label_is_a_mistake() -> None:
    problems = Options(hypothesis_template="It is so.").problems()
    assert [name for name, _ in problems] == ["hypothesis_template"]

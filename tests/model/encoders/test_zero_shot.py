"""Zero-shot classification answers what transformers' own pipeline does, and says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stub_server import StubServer
from wire import Reply

from hf_triton.zero_shot_classification.options import hypothesis, template_problem
from tests.model.encoders.tasks import labelled, model_of
from tests.support.served_encoder import outputs_of, pipeline, request, served
from tests.support.tiny_encoders import texts

TASK = "zero-shot-classification"
TEXTS = texts(5, longest=50)
LABELS = ["food", "a big red house", "Paris"]


def nli_model(folder: Path, *labels: str) -> Path:
    return model_of(TASK, folder / "model", **labelled(*labels))


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


def test_texts_of_one_batch_score_as_in_transformers(server: StubServer, model: Path) -> None:
    reference = pipeline(TASK, model)
    ways: list[dict[str, Any]] = [{}, {"multi_label": True}, {"hypothesis_template": "{} is bad"}]
    asked = [(text, way) for text in TEXTS for way in ways]
    pending = server.send_together(
        [request(text_input=text, candidate_labels=LABELS, **way) for text, way in asked]
    )
    got = [answer(one.reply()) for one in pending]
    for one, (text, way) in zip(got, asked, strict=True):
        assert_same(one, reference(text, LABELS, **way))


@pytest.mark.parametrize("labels", ["food, Paris ,, a cat", "größe, 猫", "food"])
def test_one_text_is_a_list_of_labels_and_one_label_weighed_against_its_contradiction(
    labels: str, server: StubServer, model: Path
) -> None:
    reply = server.infer(request(text_input=TEXTS[2], candidate_labels=labels))
    assert_same(answer(reply), pipeline(TASK, model)(TEXTS[2], labels))


def test_only_the_text_is_cut(server: StubServer, model: Path) -> None:
    long = "the big red cat sat on a mat . " * 40
    asked = request(text_input=long, candidate_labels=LABELS, truncate=True)
    assert_same(answer(server.infer(asked)), pipeline(TASK, model)(long, LABELS))


def test_entailment_first_is_found_by_its_name(tmp_path: Path) -> None:
    model = nli_model(tmp_path, "ENTAILMENT", "not_entailment")
    with served(tmp_path, TASK, model) as server:
        asked = request(text_input=TEXTS[1], candidate_labels=LABELS, multi_label=True)
        got = answer(server.infer(asked))
    assert_same(got, pipeline(TASK, model)(TEXTS[1], LABELS, multi_label=True))


def test_without_a_label_for_entailment_the_last_is_taken_with_a_warning(
    tmp_path: Path, log_lines: list[str]
) -> None:
    model = nli_model(tmp_path, "no", "perhaps", "yes")
    with served(tmp_path, TASK, model) as server:
        got = answer(server.infer(request(text_input=TEXTS[1], candidate_labels=LABELS)))
    assert any(line.startswith("W") and "entail" in line for line in log_lines)
    assert_same(got, pipeline(TASK, model)(TEXTS[1], LABELS))


@pytest.mark.parametrize("template", ["It is {}.", "{{}} is {}", "{{{}}}", "{}", "100 %{{ {}"])
def test_braces_are_formatted_as_python_does(template: str) -> None:
    assert template_problem(template) is None
    assert hypothesis(template, "a {b}") == template.format("a {b}")


@pytest.mark.parametrize(
    "template, problem",
    [
        ("It is {{}}.", "without {}"),
        ("nothing", "without {}"),
        ("It is { {}.", "single brace"),
        ("It is {}}.", "single brace"),
        ("{} of {label}", "with more between braces"),
        ("{0.__class__} {}", "with more between braces"),
        ("{!r}", "with more between braces"),
        ("{:>90000000}", "with more between braces"),
    ],
)
def test_what_is_no_place_for_a_label_is_refused(template: str, problem: str) -> None:
    assert problem in str(template_problem(template))

"""Ensembles on a real tritonserver: the same answers as single models, and clear errors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.encoders.tiny_encoders import WORDS, texts, tiny_encoder
from tests.support.triton import Answer, Triton, serving

pytestmark = [pytest.mark.server, pytest.mark.slow]

LABELS = {
    "id2label": {0: "bad", 1: "fair", 2: "good"},
    "label2id": {"bad": 0, "fair": 1, "good": 2},
}
MODELS_YAML = """
defaults: {{dtype: float32}}
models:
  - {{name: embed_single, task: feature-extraction, model: {embed}}}
  - {{name: classify_single, task: text-classification, model: {classify}, max_batch_size: 8}}
  - name: embed
    task: feature-extraction
    model: {embed}
    layout: ensemble
    ensemble: {{tokenizer_instances: 2}}
  - name: classify
    task: text-classification
    model: {classify}
    max_batch_size: 8
    layout: ensemble
"""


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("ensembles")
    models = MODELS_YAML.format(
        embed=tiny_encoder("bert", "AutoModel", folder / "embedder"),
        classify=tiny_encoder(
            "distilbert", "AutoModelForSequenceClassification", folder / "classifier", **LABELS
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with serving(models, folder) as running:
            yield running


def tensor(name: str, datatype: str, *values: Any, rows: int = 0) -> dict[str, Any]:
    shape = [rows, len(values) // rows] if rows else [len(values)]
    return {"name": name, "datatype": datatype, "shape": shape, "data": list(values)}


def outputs(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    return {
        output["name"]: np.array(output["data"]).reshape(output["shape"])
        for output in answer.body["outputs"]
    }


def assert_same(triton: Triton, name: str, *inputs: dict[str, Any], **body: Any) -> None:
    """The ensemble ``name`` and its single twin answer the same."""
    expected = outputs(triton.infer(f"{name}_single", *inputs, **body))
    got = outputs(triton.infer(name, *inputs, **body))
    assert got.keys() == expected.keys()
    for output, array in expected.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(got[output], array, atol=1e-4)
        else:
            assert (got[output] == array).all()


def test_embeddings_are_those_of_the_single_model(triton: Triton) -> None:
    for text in texts(4):
        assert_same(triton, "embed", tensor("text_input", "BYTES", text))
    assert_same(triton, "embed", tensor("input_text", "BYTES", *texts(5)))
    short = tensor("text_input", "BYTES", "the cat")
    assert_same(triton, "embed", short, tensor("dimensions", "INT32", 8))
    assert_same(triton, "embed", short, tensor("return_num_input_tokens", "BOOL", True))
    assert_same(triton, "embed", short, outputs=[{"name": "embedding"}])
    assert_same(triton, "embed", short, parameters={"dimensions": 4})


def test_a_batch_of_texts_and_pairs_is_classified_as_by_the_single_model(triton: Triton) -> None:
    first, second = texts(3), texts(3, seed=2)
    one = tensor("text_input", "BYTES", *first, rows=3)
    assert_same(triton, "classify", one)
    assert_same(triton, "classify", one, tensor("text_pair", "BYTES", *second, rows=3))
    assert_same(triton, "classify", one, tensor("top_k", "INT32", 3, 1, 2, rows=3))


def test_many_callers_at_once_each_get_their_own(triton: Triton) -> None:
    asked = texts(60)

    def embedding(model: str, text: str) -> list[float]:
        answer = triton.generate(model, text_input=text)
        assert answer.status == 200, answer.body
        found: list[float] = answer.body["embedding"]
        return found

    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(lambda text: embedding("embed", text), asked))
    expected = [embedding("embed_single", text) for text in asked]
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [tensor("text_input", "BYTES", " ".join(WORDS * 9))],
        [tensor("text_input", "BYTES", "the cat"), tensor("dimensions", "INT32", 33)],
    ],
    ids=["nothing", "too long", "too many dimensions"],
)
def test_a_bad_request_is_refused_in_the_single_models_words(
    inputs: list[dict[str, Any]], triton: Triton
) -> None:
    expected, got = triton.infer("embed_single", *inputs), triton.infer("embed", *inputs)
    assert (got.status, expected.status) == (400, 400)
    assert got.body["error"] == f"in ensemble 'embed', {expected.body['error']}"


def test_the_model_step_can_be_asked_alone(triton: Triton) -> None:
    """Rows of tokens, the tensors of exported models: for clients that tokenise themselves."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    rows = [
        tensor(name, "INT64", *values, rows=2) for name, values in zip(names, ROWS, strict=True)
    ]
    found = outputs(triton.infer("classify_model", *rows))
    assert found["output"].shape == (2, 3)
    wrong = [tensor("input_ids", "INT64", *[10**6] * 6, rows=2), *rows[1:]]
    refused = triton.infer("classify_model", *wrong)
    assert (refused.status, refused.body["error"].split(",")[0]) == (400, "input_ids: got 1000000")


ROWS = ([1, 5, 2, 1, 2, 0], [1, 1, 1, 1, 1, 0], [0] * 6)

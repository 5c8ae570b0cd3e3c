"""Sparse embeddings, late interaction and scores of two texts, as a served model answers them.
test_saved_models.py has the numbers of sentence-transformers and of PyLate's folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from stub_server import StubServer
from transformers import AutoModelForMaskedLM, AutoTokenizer
from triton_python_backend_utils import TritonModelException
from wire import Array

from hf_triton.feature_extraction.similarity import SIMILARITIES
from tests.support.saved_models import CASES, Case, save, write_json
from tests.support.served_encoder import outputs_of, refused, request, rows, served
from tests.support.tiny_encoders import texts

TASK, TEXTS = "feature-extraction", texts(5)
SCORED = ("score", "num_input_tokens")


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubServer]:
    folder = tmp_path_factory.mktemp("late")
    model = save(CASES["late"], folder / "model")
    with served(folder, TASK, model, options={"truncation": True}) as server:
        yield server


def vectors(server: StubServer, text: str, use: str) -> Array:
    asked = replace(request(text_input=text), parameters={"input_type": use})
    return outputs_of(server.infer(asked))["token_embeddings"]


def test_the_option_splade_makes_sparse_embeddings_of_a_masked_language_model(
    tmp_path: Path,
) -> None:
    model = save(Case(head="AutoModelForMaskedLM"), tmp_path / "model")
    (model / "modules.json").unlink()
    whole: Any = AutoModelForMaskedLM.from_pretrained(model).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    expected = []
    for text in TEXTS:
        with torch.inference_mode():
            logits = whole(**tokenizer(text, return_tensors="pt")).logits[0]
        expected.append(logits.relu().log1p().amax(dim=0).numpy())
    with served(tmp_path, TASK, model, options={"pooling": "splade"}) as server:
        found = outputs_of(server.infer(request(input_text=TEXTS)))
        assert set(found) == {"token_ids", "weights"}
        got = np.zeros((len(TEXTS), len(expected[0])), np.float32)
        for row, ids, weights in zip(got, found["token_ids"], found["weights"], strict=True):
            row[ids[weights > 0]] = weights[weights > 0]
        np.testing.assert_allclose(got, expected, atol=1e-4)
        few = outputs_of(server.infer(request(text_input=TEXTS[0], dimensions=3)))["weights"]
        assert sorted(few) == pytest.approx(sorted(expected[0])[-3:], abs=1e-4)
        score = outputs_of(server.infer(request(text_input=TEXTS[0], text_pair=TEXTS[1])))
        assert score["score"] == pytest.approx([expected[0] @ expected[1]], rel=1e-4)
        refused(
            server,
            "embedding: no output of a text to this model; allowed: token_ids, we",
            outputs=("embedding",),
            text_input="a",
        )


def test_a_query_is_scored_by_the_best_token_for_each_of_its_own(late: StubServer) -> None:
    query = vectors(late, TEXTS[0], "search_query")
    documents = [vectors(late, text, "search_document") for text in TEXTS[1:]]
    expected = [float((query @ one.T).max(axis=1).sum()) for one in documents]
    pairs = {"input_text": [TEXTS[0]] * 4, "text_pair": TEXTS[1:]}
    found = outputs_of(late.infer(request(SCORED, **pairs)))
    np.testing.assert_allclose(found["score"][:, 0], expected, atol=1e-4)
    assert found["num_input_tokens"].flatten().tolist() == [14 + 12] * 4
    refused(late, "text_pair", **{**pairs, "text_pair": TEXTS[1:3]})


def test_rows_of_fewer_tokens_end_with_zeros(late: StubServer) -> None:
    (found,) = outputs_of(late.infer(request(input_text=TEXTS))).values()
    alone = [vectors(late, text, "search_document") for text in TEXTS]
    assert found.shape == (len(TEXTS), max(map(len, alone)), 16)
    for row, one in zip(found, alone, strict=True):
        np.testing.assert_allclose(row[: len(one)], one, atol=1e-5)
        assert not row[len(one) :].any()


def test_vectors_of_tokens_can_be_cut_and_batched(tmp_path: Path) -> None:
    model = save(CASES["late, seen"], tmp_path / "model")
    options = {"truncation": True}
    with served(tmp_path, TASK, model, options=options, max_batch_size=4) as server:
        asked = rows(text_input=TEXTS[:3], dimensions=[4] * 3)
        (found,) = outputs_of(server.infer(asked)).values()
    assert found.shape[0::2] == (3, 4)
    np.testing.assert_allclose(np.linalg.norm(found[:, 0], axis=-1), 1, atol=1e-5)


def test_stanfords_colbert_is_read_as_the_same_model_of_pylate(tmp_path: Path) -> None:
    case = CASES["PyLate"]
    model = save(case, tmp_path / "pylate")
    with served(tmp_path, TASK, model) as server:
        expected = [vectors(server, TEXTS[0], use) for use in ("search_query", "search_document")]
    weights = load_file(model / "model.safetensors")
    linear = load_file(model / "1_Dense/model.safetensors")
    save_file({**weights, **linear}, model / "model.safetensors", {"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    write_json(model / "config.json", {**config, "architectures": ["HF_ColBERT"]})
    names = {"query_token_id": "[Q]", "doc_token_id": "[D]", "mask_punctuation": False}
    lengths = {"query_maxlen": 14, "doc_maxlen": 12, "dim": 16}
    write_json(model / "artifact.metadata", {**names, **lengths})
    (model / "modules.json").unlink()
    with served(tmp_path, TASK, model) as server:
        got = [vectors(server, TEXTS[0], use) for use in ("search_query", "search_document")]
    assert [one.shape[1] for one in got] == [16, 16]
    assert len(got[0]) == len(expected[0]) == 14
    write_json(model / "artifact.metadata", {**names, **lengths, "dim": 15})
    with pytest.raises(TritonModelException, match="size mismatch"), served(tmp_path, TASK, model):
        pass


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"query_expansion": {"strategy": "all"}}, "query_expansion: got strategy 'all'"),
        ({"query_expansion": {"strategy": "min", "length": 5, "token": "nowhere"}}, "no token now"),
        ({"document_length": "x"}, "document_length: got 'x', expected a whole number"),
    ],
)
def test_what_late_interaction_can_not_follow_is_refused(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    case = CASES["late"]
    changed = replace(case, transformer={**case.transformer, **changes})
    model = save(changed, tmp_path / "model")
    with pytest.raises(TritonModelException, match=told), served(tmp_path, TASK, model):
        pass


@pytest.mark.parametrize(
    "name, score",
    [("cosine", 0.0), ("dot", 0.0), ("euclidean", -np.sqrt(13)), ("manhattan", -5.0)],
)
def test_two_embeddings_are_compared_as_the_models_files_say(name: str, score: float) -> None:
    first, second = np.array([3.0, 0.0]), np.array([0.0, 2.0])
    assert SIMILARITIES[name](first, second) == pytest.approx(score)
    assert SIMILARITIES["meanmaxsim"](first[None], np.stack([first, second])) == 9

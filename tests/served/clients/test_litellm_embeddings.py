"""LiteLLM's embeddings of provider ``triton/``: a list of texts, all outputs two-dimensional."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import numpy as np
import pytest

from tests.support.triton import Triton

TEXTS = ["A dog sleeps under a tree.", "The film was very good.", "hello"]


def embed_as_litellm(url: str, texts: list[str]) -> list[list[float]]:
    """Its request's exact body, and its way through the answer: every output is one of vectors."""
    body = {
        "inputs": [
            {"name": "input_text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
        ]
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    vectors = []
    for output in answer["outputs"]:
        assert len(output["shape"]) == 2, output["name"]
        rows, size = output["shape"]
        vectors += [output["data"][size * row : size * (row + 1)] for row in range(rows)]
    return vectors


@pytest.mark.parametrize("num_texts", [1, 3])
def test_each_text_gets_its_own_vector(triton: Triton, num_texts: int) -> None:
    vectors = embed_as_litellm(triton.url("embedding", "infer"), TEXTS[:num_texts])
    alone: list[Any] = []
    for text in TEXTS[:num_texts]:
        alone += embed_as_litellm(triton.url("embedding", "infer"), [text])
    assert len(vectors) == num_texts
    np.testing.assert_allclose(vectors, alone, atol=1e-5)

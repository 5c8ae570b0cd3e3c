"""LiteLLM's provider ``triton/``: ``/generate``, ``/generate_stream`` and ``/infer``.

A stream goes to ``api_base`` with ``_stream`` behind it, so an ``api_base`` that names the engine's
folder, ``.../models/NAME_stream/generate``, both streams and answers at once.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from tests.scenarios.reference import Reference
from tests.support.triton import Triton

PROMPT = "How can you be"
# Up to 1.75 or so, and since then.
PARAMETERS: dict[str, dict[str, Any]] = {
    "1.60": {"max_tokens": 40, "bad_words": [""], "stop_words": [""]},
    "1.109": {"max_tokens": 40},
}


def post_as_litellm(url: str, body: dict[str, Any]) -> str:
    """By httpx, with ``data=json.dumps(body)``."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(response.read().decode())


@pytest.mark.parametrize("model", ["demo", "batched", "demo_stream", "batched_stream"])
@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS)
def test_generate(
    triton: Triton, reference: Reference, model: str, parameters: dict[str, Any]
) -> None:
    body = {"text_input": PROMPT, "parameters": parameters, "stream": False}

    answer = json.loads(post_as_litellm(triton.url(model, "generate"), body))

    assert answer["text_output"] == reference.text(PROMPT, 40)


@pytest.mark.parametrize("model", ["demo", "batched", "demo_stream", "batched_stream"])
@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS)
def test_generate_stream(
    triton: Triton, reference: Reference, model: str, parameters: dict[str, Any]
) -> None:
    """One event where ``api_base`` names the model that answers once."""
    body = {"text_input": PROMPT, "parameters": parameters, "stream": True}

    answer = post_as_litellm(triton.url(model, "generate_stream"), body)

    lines = [line for line in answer.splitlines() if line.startswith("data:")]
    chunks = [json.loads(line.removeprefix("data:")) for line in lines]
    assert "".join(chunk.get("text_output", "") for chunk in chunks) == reference.text(PROMPT, 40)
    assert not any("is_finished" in chunk or "stop_reason" in chunk for chunk in chunks)
    assert all(int(chunk.get("index", 0)) == 0 for chunk in chunks)
    assert (len(chunks) > 1) is model.endswith("_stream")


@pytest.mark.parametrize("max_tokens", [None, 12])
def test_infer(triton: Triton, reference: Reference, max_tokens: int | None) -> None:
    options: dict[str, Any] = {"top_k": 1, "repetition_penalty": 1.0, "stop_words": "nowhere"}
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    inputs = [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [PROMPT]}]
    for name, value in options.items():
        datatype = {int: "INT32", float: "FP32", str: "BYTES"}[type(value)]
        inputs.append({"name": name, "shape": [1], "datatype": datatype, "data": [value]})
    if max_tokens is None:
        inputs.append({"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [20]})

    answer = json.loads(post_as_litellm(triton.url("demo", "infer"), {"inputs": inputs}))

    assert "".join(answer["outputs"][0]["data"]) == reference.text(PROMPT, max_tokens or 20)

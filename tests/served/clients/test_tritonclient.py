"""NVIDIA's tritonclient as its users call it: HTTP, gRPC and both kinds of asyncio."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio

from tests.scenarios.reference import Reference
from tests.support.triton import Triton

PROMPT = "How can you be"
MODELS = ("demo", "batched")
KINDS: dict[str, Any] = {"http": http_client, "grpc": grpc_client}
ASYNCIO_KINDS: dict[str, Any] = {"http": http_aio, "grpc": grpc_aio}


def inputs(kind: Any, model: str, *, max_tokens: int = 12) -> list[Any]:
    shape = [1] if model.startswith("demo") else [1, 1]
    text = kind.InferInput("text_input", shape, "BYTES")
    text.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_).reshape(shape))
    length = kind.InferInput("max_tokens", shape, "INT32")
    length.set_data_from_numpy(np.array([max_tokens], dtype=np.int32).reshape(shape))
    return [text, length]


def url(triton: Triton, kind: str) -> str:
    return triton.http if kind == "http" else triton.grpc


def text_of(result: Any, model: str) -> str:
    """One text, of the shape that the model's configuration promises."""
    array = result.as_numpy("text_output")
    assert array.shape == ((1,) if model.startswith("demo") else (1, 1))
    return str(array.flat[0].decode())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_infer(triton: Triton, reference: Reference, kind: str, model: str) -> None:
    outputs = [KINDS[kind].InferRequestedOutput("text_output")]
    with KINDS[kind].InferenceServerClient(url(triton, kind)) as client:
        result = client.infer(model, inputs(KINDS[kind], model), outputs=outputs, request_id="7")

    assert text_of(result, model) == reference.text(PROMPT, 12)
    response = result.get_response()
    assert (response["id"] if kind == "http" else response.id) == "7"


@pytest.mark.parametrize("model", MODELS)
def test_http_infer_with_json_tensors(triton: Triton, reference: Reference, model: str) -> None:
    shape = [1] if model == "demo" else [1, 1]
    text = http_client.InferInput("text_input", shape, "BYTES")
    text.set_data_from_numpy(np.array([PROMPT], dtype=np.object_).reshape(shape), binary_data=False)
    outputs = [http_client.InferRequestedOutput("text_output", binary_data=False)]
    with http_client.InferenceServerClient(triton.http) as client:
        result = client.infer(model, [text], outputs=outputs, parameters={"max_tokens": 12})

    array = result.as_numpy("text_output")  # of str: JSON holds no bytes
    assert array.shape == tuple(shape)
    assert array.flat[0] == reference.text(PROMPT, 12)


@pytest.mark.parametrize("model", MODELS)
def test_http_async_infer(triton: Triton, reference: Reference, model: str) -> None:
    with http_client.InferenceServerClient(triton.http, concurrency=4) as client:
        waiting = [client.async_infer(model, inputs(http_client, model)) for _ in range(4)]
        texts = [text_of(request.get_result(), model) for request in waiting]

    assert texts == [reference.text(PROMPT, 12)] * 4


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ASYNCIO_KINDS)
def test_asyncio_infer(triton: Triton, reference: Reference, kind: str, model: str) -> None:
    async def ask() -> list[str]:
        async with ASYNCIO_KINDS[kind].InferenceServerClient(url(triton, kind)) as client:
            asked = [client.infer(model, inputs(KINDS[kind], model)) for _ in range(4)]
            return [text_of(result, model) for result in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [reference.text(PROMPT, 12)] * 4


@pytest.mark.parametrize("model", MODELS)
def test_grpc_async_infer(triton: Triton, reference: Reference, model: str) -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with grpc_client.InferenceServerClient(triton.grpc) as client:
        for _ in range(4):
            client.async_infer(
                model,
                inputs(grpc_client, model),
                callback=lambda result, error: answers.put((result, error)),
            )
        results = [answers.get(timeout=60) for _ in range(4)]

    assert [error for _, error in results] == [None] * 4
    assert [text_of(result, model) for result, _ in results] == [reference.text(PROMPT, 12)] * 4


@pytest.mark.parametrize("model", MODELS)
def test_asyncio_stream(triton: Triton, reference: Reference, model: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        stream = grpc_client.InferInput("stream", [1] if model == "demo" else [1, 1], "BOOL")
        stream.set_data_from_numpy(np.array([True]).reshape(stream.shape()))
        yield {
            "model_name": f"{model}_stream",
            "inputs": [*inputs(grpc_client, model, max_tokens=40), stream],
            "enable_empty_final_response": True,
        }

    async def read() -> list[str]:
        texts = []
        async with grpc_aio.InferenceServerClient(triton.grpc) as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None, error
                texts.append(text_of(result, model))
        return texts

    texts = asyncio.run(read())
    assert len(texts) > 1
    assert "".join(texts) == reference.text(PROMPT, 40)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_says_of_itself(triton: Triton, kind: str) -> None:
    with KINDS[kind].InferenceServerClient(url(triton, kind)) as client:
        for model in (*MODELS, *(f"{model}_stream" for model in MODELS)):
            assert client.is_model_ready(model)
            as_json = {} if kind == "http" else {"as_json": True}
            metadata = client.get_model_metadata(model, **as_json)
            assert metadata["outputs"][0]["name"] == "text_output"
            assert metadata["inputs"][0]["name"] == "text_input"

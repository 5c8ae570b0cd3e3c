"""Requests of clients that are built on Triton, tensor for tensor. The clients themselves are
driven by tests/release/clients.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client

from tests.scenarios.endpoint import Model, joined
from tests.scenarios.reference import Reference
from tests.scenarios.served_models import is_batched
from tests.scenarios.triton_endpoints import GrpcEndpoint
from tests.support.triton import Triton, post, post_for_events

PROMPT = "How can you be"
FOLDERS = ("demo", "batched", "demo_stream", "batched_stream")
MOST = 40  # late tokens come together, but not all of so many

# Bodies of /generate, and how many tokens they ask for.
FLAT: dict[str, tuple[dict[str, Any], int]] = {
    "curl of NVIDIA's tutorial": ({}, 128),
    "curl of vllm_backend's README": ({"temperature": 0, "exclude_input_in_output": True}, 128),
    "LiteLLM 1.60": ({"max_tokens": MOST, "bad_words": [""], "stop_words": [""]}, MOST),
    "LiteLLM 1.109": ({"max_tokens": MOST}, MOST),
}


@pytest.mark.parametrize(
    "folder, client",
    [
        *(("demo", client) for client in FLAT),
        *((folder, "LiteLLM 1.109") for folder in FOLDERS[1:]),
    ],
)
def test_generate(triton: Triton, reference: Reference, folder: str, client: str) -> None:
    """Sent as a form, as curl's ``-d`` says of it."""
    parameters, num_tokens = FLAT[client]
    body = {"text_input": PROMPT, "parameters": {**parameters, "stream": False}}
    answer = post(triton.url(folder, "generate"), body)
    text = reference.text(PROMPT, num_tokens)
    assert answer.body == {"model_name": folder, "model_version": "1", "text_output": text}
    body["parameters"]["stream"] = True  # type: ignore[index]
    _, events = post_for_events(triton.url(folder, "generate_stream"), body)
    assert "".join(event["text_output"] for event in events) == text
    assert len(events) == 1 or folder.endswith("_stream")  # which may come in one event too
    assert not any({"is_finished", "stop_reason"} & event.keys() for event in events)


def test_infer(triton: Triton, reference: Reference) -> None:
    """By the tutorial's curl, and by LiteLLM, whose options are tensors."""
    options = {"top_k": 1, "repetition_penalty": 1.0, "stop_words": "nowhere", "max_tokens": 12}
    types = {int: "INT32", float: "FP32", str: "BYTES"}
    text: dict[str, object] = {
        "name": "text_input",
        "shape": [1],
        "datatype": "BYTES",
        "data": [PROMPT],
    }
    given: list[dict[str, object]] = [
        {"name": name, "shape": [1], "datatype": types[type(value)], "data": [value]}
        for name, value in options.items()
    ]
    for further, num_tokens in (([], 128), (given, 12)):
        answer = triton.infer("demo", text, *further)
        expected = [reference.text(PROMPT, num_tokens)]
        assert answer.body["outputs"] == [
            {"name": "text_output", "datatype": "BYTES", "shape": [1], "data": expected}
        ]


def test_litellm_reads_every_output_of_embeddings_as_vectors(triton: Triton) -> None:
    texts = ["A dog sleeps under a tree.", "The film was very good.", "hello"]

    def vectors(*asked: str) -> list[Any]:
        tensor = {"name": "input_text", "datatype": "BYTES"}
        given: dict[str, object] = {**tensor, "shape": [len(asked)], "data": asked}
        [output] = triton.infer("embedding", given).body["outputs"]
        return [*np.reshape(output["data"], output["shape"])]

    np.testing.assert_allclose(vectors(*texts), [vectors(text)[0] for text in texts], atol=1e-5)


def frontend(num_tokens: bool = True, **sampling: Any) -> dict[str, Any]:
    """The request of server/python/openai to its backend ``vllm``; it differs by release."""
    defaults = {"frequency_penalty": 0, "n": 1, "presence_penalty": 0, "top_p": 1.0}
    given = {**defaults, "temperature": 0, "max_tokens": MOST, **sampling}
    counts = ("return_num_input_tokens", "return_num_output_tokens")
    return {
        "return_logprobs": "logprobs" in sampling and sampling["logprobs"] is not False,
        "exclude_input_in_output": True,
        "sampling_parameters": json.dumps(given),
        **dict.fromkeys(counts if num_tokens else (), True),
    }


PYTHON = {
    "max_tokens": MOST,
    "top_p": 1,
    "temperature": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "seed": 2**63,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
}
# The public model, and the options, each a tensor; ``stream`` is one more.
TENSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "the frontend's vllm, 24.10": ("demo", frontend(best_of=1, ignore_eos=False)),
    "the frontend's vllm, 24.10, a chat": ("demo", frontend(logprobs=False)),
    "the frontend's vllm, 26.02": ("demo", frontend(ignore_eos=False, stop=["###"], seed=7)),
    "the frontend's python": ("batched", PYTHON),
    "the frontend's python, stop": ("batched", {**PYTHON, "stop_words": ["nowhere", "###"]}),
    "genai-perf": (
        "demo",
        {
            "exclude_input_in_output": True,
            "sampling_parameters": f'{{"max_tokens": "{MOST}", "min_tokens": "{MOST}"}}',
        },
    ),
    "LlamaIndex": (
        "batched",
        {
            "max_tokens": MOST,
            "top_k": 1,
            "top_p": 0,
            "temperature": 1.0,
            "length_penalty": 1.0,
            "repetition_penalty": 1.0,
            "random_seed": 0,
            "beam_width": 1,
        },
    ),
}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name, options", TENSORS.values(), ids=TENSORS)
def test_a_grpc_stream(
    triton: Triton, reference: Reference, name: str, options: dict[str, Any], streaming: bool
) -> None:
    model = Model(GrpcEndpoint(triton), name, batched=is_batched(name))
    expected = reference.answer(PROMPT, MOST)
    for folder in (model.engine, model):
        chunks = folder.stream(PROMPT, **{**options, "stream": streaming})
        assert joined(chunks) == expected.text
        assert (len(chunks) > 1) is (streaming and folder is not model)
        if "beam_width" in options:  # answered flat, as by TensorRT-LLM's ensemble
            assert {chunk.outputs["text_output"].ndim for chunk in chunks} == {1}
        if "return_num_input_tokens" in options:
            counts = [chunk.outputs["num_output_tokens"] for chunk in chunks]
            assert {count.dtype for count in counts} == {np.dtype(np.uint32)}
            assert sum(int(count.item()) for count in counts) == expected.num_output_tokens
            assert chunks[0].number("num_input_tokens") == expected.num_input_tokens


def test_llama_indexs_stop_signal_is_refused_and_hurts_nobody(
    triton: Triton, reference: Reference
) -> None:
    """It has inputs that only FasterTransformer had."""
    model = Model(GrpcEndpoint(triton), "batched_stream", batched=True)
    request = model.by_tensors(None, stream=True)
    signal = {"input_ids": np.empty([1, 1], np.int32), "stop": np.array([[True]])}
    [refused] = model.endpoint.stream(
        model.name, type(request)(signal, parameters={"Streaming": True})
    )
    assert "unexpected inference input" in refused.error
    assert joined(model.stream(PROMPT, max_tokens=3)) == reference.text(PROMPT, 3)


@pytest.mark.parametrize("as_tensor", [True, False])
@pytest.mark.parametrize("streaming", [False, True])
def test_client_py_of_vllm_backend_reads_each_answer_by_its_id(
    triton: Triton, reference: Reference, streaming: bool, as_tensor: bool
) -> None:
    """One stream for all; numbers are texts, in a tensor and as parameters."""
    prompts = ("How can you be\n", "Once upon a time\n", "I am going\n")
    sampling: Any = {"temperature": "0", "top_p": "0.95", "max_tokens": "20"}
    texts: list[list[str]] = [[] for _ in prompts]
    model = Model(GrpcEndpoint(triton), "demo_stream", batched=False)

    async def requests() -> AsyncIterator[dict[str, Any]]:
        told = {"sampling_parameters": json.dumps(sampling)} if as_tensor else {}
        for number, prompt in enumerate(prompts):
            request = model.by_tensors(prompt, stream=streaming, **told)
            yield {
                "model_name": model.name,
                "inputs": [
                    grpc_client.InferInput(
                        name, [1], "BOOL" if name == "stream" else "BYTES"
                    ).set_data_from_numpy(array)
                    for name, array in request.tensors.items()
                ],
                "outputs": [grpc_aio.InferRequestedOutput("text_output")],
                "request_id": str(number),
                "parameters": sampling,
            }

    async def read() -> None:
        async with grpc_aio.InferenceServerClient(triton.grpc) as client:
            async for result, error in client.stream_infer(requests(), stream_timeout=60):
                assert error is None, error
                [text] = result.as_numpy("text_output")
                texts[int(result.get_response().id)].append(text.decode())

    asyncio.run(read())
    assert ["".join(parts) for parts in texts] == [reference.text(one, 20) for one in prompts]
    assert all((len(parts) > 1) is streaming for parts in texts)


@pytest.mark.parametrize("model", ["demo", "batched"])
def test_tensors_may_be_json(triton: Triton, reference: Reference, model: str) -> None:
    shape = [1] if model == "demo" else [1, 1]
    text = http_client.InferInput("text_input", shape, "BYTES")
    text.set_data_from_numpy(np.array([PROMPT], dtype=np.object_).reshape(shape), binary_data=False)
    outputs = [http_client.InferRequestedOutput("text_output", binary_data=False)]
    with http_client.InferenceServerClient(triton.http) as client:
        result = client.infer(model, [text], outputs=outputs, parameters={"max_tokens": 12})
    array = result.as_numpy("text_output")  # of str: JSON holds no bytes
    assert (array.shape, array.item()) == (tuple(shape), reference.text(PROMPT, 12))

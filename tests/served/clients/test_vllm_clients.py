"""Clients of Triton's vLLM backend: its samples/client.py, its README's curl lines, its
documentation of additional outputs, and genai-perf's ``--backend vllm``.

All tensors have rank 1; numbers in ``sampling_parameters`` are texts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio

from tests.scenarios.reference import Reference
from tests.support.grpc_streams import stream, tensors
from tests.support.triton import Triton, post, post_for_events

PROMPTS = ("How can you be\n", "Once upon a time\n", "I am going\n")  # readlines() keeps the ends
GREEDY = {"temperature": "0", "top_p": "0.95", "max_tokens": "20"}
SAMPLED = {"temperature": "0.1", "top_p": "0.95", "max_tokens": "100"}  # as it is in client.py


def request_of_client_py(
    model: str,
    prompt: str,
    request_id: int,
    sampling: dict[str, str],
    *,
    streaming: bool,
    send_parameters_as_tensor: bool = True,
) -> dict[str, Any]:
    """samples/client.py's create_request: the same options as a tensor and as parameters."""
    arrays: dict[str, Any] = {
        "text_input": np.array([prompt.encode()], dtype=np.object_),
        "stream": np.array([streaming], dtype=bool),
    }
    if send_parameters_as_tensor:
        text = json.dumps(sampling).encode()
        arrays["sampling_parameters"] = np.array([text], dtype=np.object_)
    return {
        "model_name": model,
        "inputs": tensors(arrays),
        "outputs": [grpc_aio.InferRequestedOutput("text_output")],
        "request_id": str(request_id),
        "parameters": sampling,
    }


async def run_client_py(triton: Triton, requests: list[dict[str, Any]]) -> dict[str, list[str]]:
    """One stream for all requests; texts by request id, as they came."""

    async def all_requests() -> AsyncIterator[dict[str, Any]]:
        for request in requests:
            yield request

    texts: dict[str, list[str]] = {request["request_id"]: [] for request in requests}
    async with grpc_aio.InferenceServerClient(triton.grpc) as client:
        async for result, error in client.stream_infer(all_requests(), stream_timeout=60):
            assert error is None, error
            for text in result.as_numpy("text_output"):
                texts[result.get_response().id].append(text.decode("utf-8"))
    return texts


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_client_py_reads_each_answer_by_its_id(
    triton: Triton, reference: Reference, streaming: bool, as_tensor: bool
) -> None:
    requests = [
        request_of_client_py(
            *("demo_stream", prompt, number, GREEDY),
            streaming=streaming,
            send_parameters_as_tensor=as_tensor,
        )
        for number, prompt in enumerate(PROMPTS)
    ]

    texts = asyncio.run(run_client_py(triton, requests))

    assert ["".join(texts[str(number)]) for number in range(len(PROMPTS))] == [
        reference.text(prompt, 20) for prompt in PROMPTS
    ]
    if not streaming:
        assert all(len(parts) == 1 for parts in texts.values())


def test_client_py_samples_as_it_is(triton: Triton) -> None:
    request = request_of_client_py("demo_stream", PROMPTS[0], 0, SAMPLED, streaming=True)

    texts = asyncio.run(run_client_py(triton, [request]))

    assert "".join(texts["0"])


def test_curl_of_the_readme_generates(triton: Triton, reference: Reference) -> None:
    body = b"""{
    "text_input": "What is Triton Inference Server?",
    "parameters": {
        "stream": false,
        "temperature": 0,
        "exclude_input_in_output": true
    }
}"""
    answer = post(triton.url("demo", "generate"), body)

    assert answer.status == 200, answer.body
    expected = reference.text("What is Triton Inference Server?", 128)
    assert answer.body["text_output"] == expected


@pytest.mark.parametrize("model", ["demo_stream", "batched_stream"])
def test_curl_of_the_readme_streams(triton: Triton, reference: Reference, model: str) -> None:
    body = b'{"text_input": "How can you be", "parameters": {"stream": true, "temperature": 0}}'

    status, events = post_for_events(triton.url(model, "generate_stream"), body)

    assert status == 200, events
    assert len(events) > 1
    expected = reference.text("How can you be", 128)
    assert "".join(event["text_output"] for event in events) == expected


def test_additional_outputs_come_when_their_flags_ask(triton: Triton, reference: Reference) -> None:
    flags = (
        *("finish_reason", "cumulative_logprob", "logprobs"),
        *("num_input_tokens", "num_output_tokens"),
    )
    responses = stream(
        triton,
        "demo_stream",
        {
            "text_input": [b"How can you be"],
            "stream": np.array([True]),
            "sampling_parameters": [json.dumps({"max_tokens": 8, "logprobs": 2}).encode()],
            **{f"return_{name}": np.array([True]) for name in flags},
        },
    )

    outputs = [response.outputs() for response in responses]
    expected = reference.answer("How can you be", 8)
    assert outputs[-1]["finish_reason"][0].decode() == "length"
    assert {int(output["num_input_tokens"][0]) for output in outputs} == {expected.num_input_tokens}
    assert sum(int(output["num_output_tokens"][0]) for output in outputs) == 8
    tokens = [token for output in outputs for token in json.loads(output["logprobs"][0])]
    assert "".join(next(iter(t.values()))["decoded_token"] for t in tokens) == expected.text
    sampled = [next(iter(token.values()))["logprob"] for token in tokens]
    assert outputs[-1]["cumulative_logprob"][0] == pytest.approx(sum(sampled), rel=1e-3)


@pytest.mark.parametrize("model", ["demo_stream", "batched_stream"])
@pytest.mark.parametrize("streaming", [False, True])
def test_genai_perf_gets_as_many_tokens_as_it_asks_for(
    triton: Triton, reference: Reference, model: str, streaming: bool
) -> None:
    shape = (1,) if model == "demo_stream" else (1, 1)  # perf_analyzer reads the configuration
    arrays: dict[str, Any] = {
        "text_input": np.array([b"How can you be"], dtype=np.object_),
        "exclude_input_in_output": np.array([True]),
        **({"stream": np.array([True])} if streaming else {}),
        "sampling_parameters": np.array(
            [b'{"max_tokens": "100", "min_tokens": "100"}'], dtype=np.object_
        ),
    }

    responses = stream(
        triton, model, {name: array.reshape(shape) for name, array in arrays.items()}
    )

    text = "".join(
        part.decode() for response in responses for part in response.outputs()["text_output"].flat
    )
    assert text == reference.answer("How can you be", 100, min_tokens=100).text
    assert (len(responses) > 1) is streaming

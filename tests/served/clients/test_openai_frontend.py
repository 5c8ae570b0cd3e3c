"""Triton's own OpenAI frontend (server/python/openai), with its backends ``vllm`` and ``python``.

It runs in the server's process; here its tensors come over gRPC, in the same order, shapes and
types. Each response must hold exactly one text, and token counts as UINT32.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.scenarios.reference import Reference
from tests.support.grpc_streams import Response, stream
from tests.support.triton import Triton

PROMPT = "How can you be"
NUM_TOKENS = 40  # late ones come together, but not all of so many
GREEDY = {"temperature": 0, "top_p": 1.0}
# What a request's model_dump leaves in, by release of the frontend.
DEFAULTS = {
    "frequency_penalty": 0,
    "n": 1,
    "presence_penalty": 0,
    **GREEDY,
    "max_tokens": NUM_TOKENS,
}
DUMPS: dict[str, dict[str, Any]] = {
    "24.10": {**DEFAULTS, "best_of": 1, "ignore_eos": False},
    "24.10 chat": {**DEFAULTS, "logprobs": False},
    "26.02": {**DEFAULTS, "ignore_eos": False, "stop": ["###"], "seed": 7},
}


def for_vllm(
    prompt: str,
    sampling: dict[str, Any],
    *,
    streaming: bool = False,
    logprobs: bool = False,
    echo: bool = False,
) -> dict[str, Any]:
    return {
        "return_logprobs": np.array([logprobs], dtype=np.bool_),
        "text_input": [prompt],
        "stream": np.array([streaming], dtype=np.bool_),
        "exclude_input_in_output": np.array([not echo], dtype=np.bool_),
        "sampling_parameters": [json.dumps(sampling)],
        "return_num_input_tokens": np.array([True], dtype=np.bool_),
        "return_num_output_tokens": np.array([True], dtype=np.bool_),
    }


def for_python(
    prompt: str,
    *,
    streaming: bool = False,
    stop: list[str] | None = None,
    seed: int | None = None,
    echo: bool | None = None,
) -> dict[str, Any]:
    return {
        "text_input": [[prompt]],
        "stream": np.array([[streaming]], dtype=np.bool_),
        "max_tokens": np.array([[NUM_TOKENS]], dtype=np.int32),
        **({"stop_words": [stop]} if stop else {}),
        "top_p": np.array([[1]], dtype=np.float32),
        "frequency_penalty": np.array([[0]], dtype=np.float32),
        "presence_penalty": np.array([[0]], dtype=np.float32),
        **({} if seed is None else {"seed": np.array([[seed]], dtype=np.uint64)}),
        "temperature": np.array([[0]], dtype=np.float32),
        **(
            {}
            if echo is None
            else {"exclude_input_in_output": np.array([[not echo]], dtype=np.bool_)}
        ),
        "return_num_input_tokens": np.array([[True]], dtype=np.bool_),
        "return_num_output_tokens": np.array([[True]], dtype=np.bool_),
    }


def text_of(response: Response) -> str:
    """_get_output: the response's one string, "" where it has none."""
    texts = response.outputs().get("text_output")
    if texts is None:
        return ""
    assert texts.size == 1, f"Expected to find 1 string in the output, found {texts.size} instead."
    return str(texts.flat[0].decode())


def usage_of(responses: list[Response]) -> tuple[int, int]:
    """_StreamingUsageAccumulator: prompt tokens of the first, completion tokens of all."""
    outputs = [response.outputs() for response in responses]
    for output in outputs:
        assert output["num_input_tokens"].dtype == np.uint32
        assert output["num_output_tokens"].dtype == np.uint32
    prompt_tokens = int(outputs[0]["num_input_tokens"].flat[0])
    return prompt_tokens, sum(int(output["num_output_tokens"].flat[0]) for output in outputs)


@pytest.mark.parametrize("sampling", DUMPS.values(), ids=DUMPS)
@pytest.mark.parametrize("streaming", [False, True])
def test_backend_vllm(
    triton: Triton, reference: Reference, sampling: dict[str, Any], streaming: bool
) -> None:
    responses = stream(triton, "demo_stream", for_vllm(PROMPT, sampling, streaming=streaming))

    expected = reference.answer(PROMPT, NUM_TOKENS)
    assert "".join(map(text_of, responses)) == expected.text
    assert usage_of(responses) == (expected.num_input_tokens, NUM_TOKENS)
    assert [response.final for response in responses[:-1]] == [False] * (len(responses) - 1)
    assert (len(responses) > 1) is streaming  # else: one, or one and an empty one


def test_backend_vllm_on_the_model_that_answers_once(triton: Triton, reference: Reference) -> None:
    sampling = DUMPS["26.02"]

    (response,) = stream(triton, "demo", for_vllm(PROMPT, sampling, streaming=True))

    assert text_of(response) == reference.text(PROMPT, NUM_TOKENS)


@pytest.mark.parametrize("streaming", [False, True])
def test_backend_vllm_reads_log_probabilities(
    triton: Triton, reference: Reference, streaming: bool
) -> None:
    sampling = {**DUMPS["26.02"], "logprobs": 2}

    responses = stream(
        triton, "demo_stream", for_vllm(PROMPT, sampling, streaming=streaming, logprobs=True)
    )

    tokens = []
    for response in responses:
        found = response.outputs()["logprobs"]
        assert found.size == 1
        tokens += json.loads(found.flat[0])
    ranked = [sorted(token.values(), key=lambda entry: entry["rank"]) for token in tokens]
    assert "".join(entries[0]["decoded_token"] for entries in ranked) == reference.text(
        PROMPT, NUM_TOKENS
    )
    assert all(len(entries) == 2 for entries in ranked)  # the sampled one is the likeliest
    assert all(entries[0]["logprob"] >= entries[1]["logprob"] for entries in ranked)


def test_backend_vllm_echoes(triton: Triton, reference: Reference) -> None:
    responses = stream(
        triton, "demo_stream", for_vllm(PROMPT, DUMPS["24.10"], streaming=True, echo=True)
    )

    assert "".join(map(text_of, responses)) == PROMPT + reference.text(PROMPT, NUM_TOKENS)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("echo", [None, False, True])
def test_backend_python(
    triton: Triton, reference: Reference, streaming: bool, echo: bool | None
) -> None:
    responses = stream(triton, "batched_stream", for_python(PROMPT, streaming=streaming, echo=echo))

    expected = reference.answer(PROMPT, NUM_TOKENS)
    prefix = PROMPT if echo else ""
    assert "".join(map(text_of, responses)) == prefix + expected.text
    assert usage_of(responses) == (expected.num_input_tokens, NUM_TOKENS)


@pytest.mark.parametrize("stop", [["?"], ["nowhere", "?"]])
def test_backend_python_stops_at_words(
    triton: Triton, reference: Reference, stop: list[str]
) -> None:
    responses = stream(
        triton, "batched_stream", for_python(PROMPT, streaming=True, stop=stop, seed=2**63)
    )

    before = reference.text(PROMPT, NUM_TOKENS).split("?")[0]
    assert "".join(map(text_of, responses)) == before


def test_backend_python_on_the_model_that_answers_once(
    triton: Triton, reference: Reference
) -> None:
    (response,) = stream(triton, "batched", for_python(PROMPT, stop=["nowhere"]))

    assert text_of(response) == reference.text(PROMPT, NUM_TOKENS)

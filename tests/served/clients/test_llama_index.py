"""LlamaIndex's NvidiaTriton: a gRPC stream with the tensors of TensorRT-LLM's ensemble.

It sends tensors of rank 2 and reads ``text_output`` as rank 1, because that ensemble answers flat
whatever its configuration says; with ``[1, 1]`` its callback dies and its caller waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from tritonclient.grpc import InferResult
from tritonclient.grpc.service_pb2 import ModelInferResponse

from tests.scenarios.reference import Reference
from tests.support.grpc_streams import Response, stream
from tests.support.triton import Triton

PROMPT = "How can you be"


def request(prompt: str, tokens: int, *, top_k: float = 1.0, top_p: float = 0) -> dict[str, Any]:
    """_generate_inputs, with the class's own defaults."""
    return {
        "text_input": np.array([[prompt]]).astype(object),
        "max_tokens": np.array([[tokens]]).astype(np.int32),
        "top_k": np.array([[top_k]]).astype(np.int32),
        "top_p": np.array([[top_p]]).astype(np.float32),
        "temperature": np.array([[1.0]]).astype(np.float32),
        "length_penalty": np.array([[1.0]]).astype(np.float32),
        "repetition_penalty": np.array([[1.0]]).astype(np.float32),
        "random_seed": np.array([[0]]).astype(np.uint64),
        "beam_width": np.array([[1]]).astype(np.int32),
        "stream": np.array([[True]], dtype=bool),
    }


def read(responses: list[Response]) -> Iterator[str]:
    """_stream_callback and _process_result: through JSON and back, then each element decoded."""
    for response in responses:
        raw = json_format.MessageToDict(response.message, preserving_proto_field_name=True)
        assert "outputs" in raw
        message = json_format.ParseDict(raw, ModelInferResponse())
        yield "".join(text.decode() for text in InferResult(message).as_numpy("text_output"))
        final = raw["parameters"]["triton_final_response"]["bool_param"]
        assert final is (response is responses[-1])


@pytest.mark.parametrize("tokens", [1, 12])
def test_it_streams(triton: Triton, reference: Reference, tokens: int) -> None:
    responses = stream(
        triton, "batched_stream", request(PROMPT, tokens), "text_output", request_id="4711"
    )

    assert "".join(read(responses)) == reference.text(PROMPT, tokens)
    assert {response.message.id for response in responses} == {"4711"}


def test_it_reads_the_model_that_answers_once_too(triton: Triton, reference: Reference) -> None:
    responses = stream(triton, "batched", request(PROMPT, 12), "text_output")

    assert "".join(read(responses)) == reference.text(PROMPT, 12)


def test_its_stop_signal_is_refused_and_hurts_nobody(triton: Triton, reference: Reference) -> None:
    """After each answer it sends inputs that only FasterTransformer had, and reads nothing more."""
    signal = {
        "input_ids": np.empty([1, 1], dtype=np.int32),
        "input_lengths": np.zeros([1, 1], dtype=np.int32),
        "request_output_len": np.array([[0]], dtype=np.uint32),
        "stop": np.array([[True]], dtype=bool),
    }

    with pytest.raises(AssertionError, match="unexpected inference input"):
        stream(triton, "batched_stream", signal, parameters={"Streaming": True})

    assert "".join(read(stream(triton, "batched_stream", request(PROMPT, 3)))) == reference.text(
        PROMPT, 3
    )

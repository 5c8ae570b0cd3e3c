"""On a real server: an error names its request once, whichever way that came."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.support.one_server import OneServer
from tests.support.triton import Triton, post_for_events

ID = "r\n7"
LABEL = "[request id: r\\n7] top_p: "


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models("demo")


def test_an_error_over_http_names_its_request_once(triton: Triton) -> None:
    body: dict[str, Any] = {"text_input": "Once upon", "top_p": 7}
    named = {**body, "id": ID}
    url = triton.url("demo_stream", "generate_stream")
    [event] = post_for_events(url, {**named, "stream": True})[1]
    tensor: dict[str, object] = {
        "name": "text_input",
        "datatype": "BYTES",
        "shape": [1],
        "data": ["Once upon"],
    }
    for told in (
        triton.generate("demo", **named).body,
        triton.infer("demo", tensor, id=ID, parameters={"top_p": 7}).body,
        event,
    ):
        assert told["error"].startswith(LABEL)
    assert triton.generate("demo", **body).body["error"].startswith("top_p: ")


def test_an_error_over_grpc_names_its_request_once(triton: Triton) -> None:
    text = grpc_client.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"Once upon"], dtype=np.object_))
    asked: dict[str, Any] = {"inputs": [text], "request_id": ID, "parameters": {"top_p": 7}}
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc_client.InferenceServerClient(triton.grpc) as client:
        client.async_infer("demo", callback=lambda result, error: answers.put(error), **asked)
        client.start_stream(lambda result, error: answers.put(error))
        client.async_stream_infer("demo_stream", **asked)
        for _ in range(2):
            assert str(answers.get(timeout=60).message()).startswith(LABEL)
        client.stop_stream()

"""On a real server: an error names its request once, whichever way that came."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.support.one_server import OneServer
from tests.support.triton import Triton, post, post_for_events

ID = "r\n7"
LABEL = "[request id: r\\n7] top_p: "


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models("demo")


def inputs() -> list[Any]:
    text = grpc_client.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"Once upon"], dtype=np.object_))
    return [text]


def test_a_request_through_a_front_is_named_once(triton: Triton) -> None:
    answer = triton.generate("demo", text_input="Once upon", top_p=7, id=ID)
    assert answer.status == 400
    assert answer.body["error"].startswith(LABEL)
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["Once upon"]}
    body = {"inputs": [tensor], "id": ID, "parameters": {"top_p": 7}}
    answer = post(triton.url("demo", "infer"), body)
    assert answer.status == 400
    assert answer.body["error"].startswith(LABEL)


def test_an_event_of_a_stream_names_its_request(triton: Triton) -> None:
    body = {"text_input": "Once upon", "top_p": 7, "stream": True, "id": ID}
    _, events = post_for_events(triton.url("demo_stream", "generate_stream"), body)
    assert events[-1]["error"].startswith(LABEL)


def test_grpc_requests_and_streams_are_named(triton: Triton) -> None:
    parameters = {"top_p": 7}
    with grpc_client.InferenceServerClient(triton.grpc) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("demo", inputs(), request_id=ID, parameters=parameters)
        assert str(caught.value.message()).startswith(LABEL)
        answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("demo_stream", inputs(), request_id=ID, parameters=parameters)
        _, error = answers.get(timeout=60)
        assert str(error.message()).startswith(LABEL)
        client.stop_stream()


def test_without_an_id_an_error_is_as_it_is(triton: Triton) -> None:
    answer = triton.generate("demo", text_input="Once upon", top_p=7)
    assert answer.body["error"].startswith("top_p: ")

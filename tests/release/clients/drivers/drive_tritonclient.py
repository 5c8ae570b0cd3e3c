"""The four clients of tritonclient."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from tried import EXPECTED, PROMPT, raises, tried
from tritonclient.utils import InferenceServerException

HTTP, GRPC = os.environ["TRITON_HTTP"], os.environ["TRITON_GRPC"]


def inputs(kind: Any, *, stream: bool = False) -> list[Any]:
    arrays = {
        "text_input": np.array([PROMPT.encode()], dtype=np.object_),
        "max_tokens": np.array([12], dtype=np.int32),
        "stream": np.array([stream]),
    }
    data_types = {"text_input": "BYTES", "max_tokens": "INT32", "stream": "BOOL"}
    return [
        kind.InferInput(name, [1], data_types[name]).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]


def text_of(result: Any) -> str:
    return str(result.as_numpy("text_output")[0].decode())


def streamed(*, empty_final: bool) -> Iterator[str]:
    arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with grpc_client.InferenceServerClient(GRPC) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer(
            "demo_stream",
            inputs(grpc_client, stream=True),
            enable_empty_final_response=empty_final,
        )
        final = False
        while not final:
            result, error = arrived.get(timeout=60)
            if error:
                raise error
            if result.as_numpy("text_output") is not None:
                yield text_of(result)
            final = result.get_response().parameters["triton_final_response"].bool_param


async def asked(kind: Any, library: Any, server: str) -> str:
    async with kind.InferenceServerClient(server) as client:
        return text_of(await client.infer("demo", inputs(library)))


for name, kind, server in (("http", http_client, HTTP), ("grpc", grpc_client, GRPC)):
    with tried(f"{name}: infer"), kind.InferenceServerClient(server) as client:
        assert text_of(client.infer("demo", inputs(kind))) == EXPECTED
    with tried(f"{name}: metadata and configuration"), kind.InferenceServerClient(server) as client:
        assert client.is_server_ready()
        assert client.is_model_ready("demo")
        assert client.get_model_metadata("demo")
        assert client.get_model_config("demo")
    with tried(f"{name}: InferenceServerException"), raises(InferenceServerException, "nobody"):
        kind.InferenceServerClient(server).infer("nobody", inputs(kind))
with tried("http.aio: infer"):
    assert asyncio.run(asked(http_aio, http_client, HTTP)) == EXPECTED
with tried("grpc.aio: infer"):
    assert asyncio.run(asked(grpc_aio, grpc_client, GRPC)) == EXPECTED
with tried("grpc: stream"):
    pieces = [list(streamed(empty_final=empty_final)) for empty_final in (False, True)]
    assert all(len(texts) > 1 and "".join(texts) == EXPECTED for texts in pieces), pieces

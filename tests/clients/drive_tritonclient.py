"""Asks a model through the four clients of tritonclient; prints the texts as one JSON object.

Arguments: ``host:port`` of HTTP and of gRPC, max_tokens. Runs in an environment with a newer
tritonclient than the one that this project pins.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio

PROMPT = "How can you be"


def inputs(kind: Any, max_tokens: int, *, stream: bool = False) -> list[Any]:
    arrays = {
        "text_input": np.array([PROMPT.encode()], dtype=np.object_),
        "max_tokens": np.array([max_tokens], dtype=np.int32),
        "stream": np.array([stream]),
    }
    data_types = {"text_input": "BYTES", "max_tokens": "INT32", "stream": "BOOL"}
    return [
        kind.InferInput(name, [1], data_types[name]).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]


def text_of(result: Any) -> str:
    return str(result.as_numpy("text_output")[0].decode())


def streamed(server: str, max_tokens: int) -> list[str]:
    arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    texts: list[str] = []
    final = False
    with grpc_client.InferenceServerClient(server) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer("demo_stream", inputs(grpc_client, max_tokens, stream=True))
        while not final:
            result, error = arrived.get(timeout=60)
            if error:
                raise error
            texts.append(text_of(result))
            final = result.get_response().parameters["triton_final_response"].bool_param
    return texts


async def in_asyncio(http: str, grpc: str, max_tokens: int) -> dict[str, str]:
    texts = {}
    for name, kind, library, server in (
        ("http.aio", http_aio, http_client, http),
        ("grpc.aio", grpc_aio, grpc_client, grpc),
    ):
        async with kind.InferenceServerClient(server) as client:
            texts[name] = text_of(await client.infer("demo", inputs(library, max_tokens)))
    return texts


def main(http: str, grpc: str, max_tokens: int) -> dict[str, Any]:
    texts: dict[str, Any] = asyncio.run(in_asyncio(http, grpc, max_tokens))
    for name, kind, server in (("http", http_client, http), ("grpc", grpc_client, grpc)):
        with kind.InferenceServerClient(server) as client:
            texts[name] = text_of(client.infer("demo", inputs(kind, max_tokens)))
    return {**texts, "grpc stream": streamed(grpc, max_tokens)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))

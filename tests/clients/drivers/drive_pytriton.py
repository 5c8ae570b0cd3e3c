"""The four clients of pytriton."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import numpy as np
from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from tried import EXPECTED, PROMPT, joined, raises, tried

HTTP, GRPC = f"http://{os.environ['TRITON_HTTP']}", f"grpc://{os.environ['TRITON_GRPC']}"
ASKED = {
    "text_input": np.array([PROMPT.encode()], dtype=np.object_),
    "max_tokens": np.array([12], dtype=np.int32),
}
STREAMED = {**ASKED, "stream": np.array([True])}


def text_of(answer: Any) -> str:
    return str(answer["text_output"][0].decode())


async def asked(url: str) -> str:
    async with AsyncioModelClient(url, "demo") as client:
        return text_of(await client.infer_sample(**ASKED))


async def pieces() -> list[str]:
    async with AsyncioDecoupledModelClient(GRPC, "demo_stream") as client:
        return [text_of(answer) async for answer in client.infer_sample(**STREAMED)]


with tried("ModelClient"):
    for url in (HTTP, GRPC):
        with ModelClient(url, "demo") as client:
            assert text_of(client.infer_sample(**ASKED)) == EXPECTED
with tried("FuturesModelClient"), FuturesModelClient(HTTP, "demo") as futures:
    waiting = [futures.infer_sample(**ASKED) for _ in range(4)]
    assert [text_of(future.result()) for future in waiting] == [EXPECTED] * 4
with tried("AsyncioModelClient"):
    assert [asyncio.run(asked(url)) for url in (HTTP, GRPC)] == [EXPECTED] * 2
with tried("DecoupledModelClient"), DecoupledModelClient(GRPC, "demo_stream") as client:
    assert joined(map(text_of, client.infer_sample(**STREAMED))) == EXPECTED
with tried("AsyncioDecoupledModelClient"):
    assert joined(iter(asyncio.run(pieces()))) == EXPECTED
with tried("PyTritonClientInferenceServerError"):
    wrong = {**ASKED, "max_tokens": np.array([-1], dtype=np.int32)}
    with raises(PyTritonClientInferenceServerError, "max_tokens"):
        ModelClient(HTTP, "demo").infer_sample(**wrong)

"""KServe's SDK: InferenceRESTClient and InferenceGRPCClient, protocol v2."""

from __future__ import annotations

import asyncio
import os

import httpx
from kserve import InferInput, InferRequest
from kserve.inference_client import InferenceGRPCClient, InferenceRESTClient, RESTConfig
from tried import EXPECTED, PROMPT, raises, tried

URL, GRPC = f"http://{os.environ['TRITON_HTTP']}", os.environ["TRITON_GRPC"]


def request(model: str = "demo") -> InferRequest:
    text = InferInput("text_input", [1], "BYTES", data=[PROMPT])
    return InferRequest(model, infer_inputs=[text], parameters={"max_tokens": 12})


async def by_rest(model: str = "demo") -> str:
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    async with client:
        response = await client.infer(URL, request(model), model_name=model)
        return str(response.outputs[0].data[0])


async def by_grpc() -> str:
    async with InferenceGRPCClient(GRPC) as client:
        response = await client.infer(request())
        return str(response.outputs[0].as_numpy().item().decode())


async def is_ready() -> tuple[bool, ...]:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as rest:
        found = await rest.is_model_ready(URL, "demo")
    async with InferenceGRPCClient(GRPC) as grpc:
        return (found, await grpc.is_server_ready(), await grpc.is_model_ready("demo"))


async def is_server_ready() -> bool:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as rest:
        return bool(await rest.is_server_ready(URL))


with tried("InferenceRESTClient.infer"):
    assert asyncio.run(by_rest()) == EXPECTED
with tried("InferenceGRPCClient.infer"):
    assert asyncio.run(by_grpc()) == EXPECTED
with tried("is_model_ready, and is_server_ready over gRPC"):
    assert all(asyncio.run(is_ready()))
with tried("InferenceRESTClient.is_server_ready"):
    assert asyncio.run(is_server_ready())
with tried("HTTPStatusError"), raises(httpx.HTTPStatusError, "404"):
    asyncio.run(by_rest("nobody"))

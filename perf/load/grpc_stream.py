"""Streamed text over one kept-open ``ModelStreamInfer``, as tritonclient opens it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from perf.load.loop import Answer, AnswerError, Ask
from perf.load.requests import Request, num_words
from perf.load.targets import expect

_LENGTH_BYTES = 4  # before each text in a tensor of KServe's
# Many streams of one process: messages are small and come at once, so nothing is to be probed.
_CHANNEL_OPTIONS = (("grpc.http2.bdp_probe", 0),)


@asynccontextmanager
async def connect(host: str, port: int, model: str) -> AsyncIterator[Ask]:
    """One kept-open stream."""
    async with grpc.aio.insecure_channel(f"{host}:{port}", options=_CHANNEL_OPTIONS) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()

        async def ask(request: Request) -> Answer:
            await call.write(infer_request(model, request))
            texts, times, is_last = b"", [], False
            while not is_last:
                response = await call.read()
                if response is grpc.aio.EOF:
                    raise ConnectionError("the server closed the stream")
                times.append(time.perf_counter())
                if response.error_message:
                    raise AnswerError(response.error_message[:200])
                texts += response.infer_response.raw_output_contents[0][_LENGTH_BYTES:]
                is_last = response.infer_response.parameters["triton_final_response"].bool_param
            return Answer(expect(num_words(texts.decode()), request.max_tokens), times)

        try:
            yield ask
        finally:
            await call.done_writing()
            # To its end: a stream cancelled at its last response may keep a model of 24.10 loaded.
            while await call.read() is not grpc.aio.EOF:
                pass


def infer_request(model: str, request: Request) -> service_pb2.ModelInferRequest:
    """A streaming request for the text alone."""
    message = service_pb2.ModelInferRequest(model_name=model)
    message.outputs.add(name="text_output")
    prompt = request.prompt.encode()
    for name, datatype, raw in (
        ("text_input", "BYTES", len(prompt).to_bytes(_LENGTH_BYTES, "little") + prompt),
        ("max_tokens", "INT32", request.max_tokens.to_bytes(4, "little")),
        ("stream", "BOOL", b"\x01"),
    ):
        message.inputs.add(name=name, datatype=datatype, shape=[1])
        message.raw_input_contents.append(raw)
    return message

"""One stream of inference requests, passed on both ways until it ends or its client goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from generator.proxy.refusal import RefusedError

_ERROR_TAG = b"\x0a"  # of ModelStreamInferResponse.error_message
_FINAL = b"triton_final_response\x12\x02\x08\x01"  # a parameter of the response, and true
_running: set[asyncio.Task[None]] = set()


async def pass_stream_on(
    context: Any, call: Any, check: Callable[[bytes], Awaitable[None]], *, may_cancel: bool
) -> None:
    """Passes the client's requests to tritonserver's ``call``, and its responses to the client. One
    that the client leaves is cancelled where it may be; else it ends by itself.

    A request that ``check`` refuses gets its error in the stream, as Triton does it. Raises
    AioRpcError where tritonserver ends the stream with an error.
    """
    stream = _Stream(context, call, check, may_cancel=may_cancel)
    sending, receiving = _run(stream.send()), _run(stream.receive())
    try:
        # Neither is ever cancelled as it reads or writes: gRPC would cancel the call.
        await asyncio.shield(receiving)
    except asyncio.CancelledError:
        stream.lose_client()
        raise
    sending.cancel()
    code = await call.code()
    if code != grpc.StatusCode.OK:
        trailing = await call.trailing_metadata()
        raise grpc.aio.AioRpcError(
            code, await call.initial_metadata(), trailing, await call.details()
        )


class _Stream:
    def __init__(
        self,
        context: Any,
        call: Any,
        check: Callable[[bytes], Awaitable[None]],
        *,
        may_cancel: bool,
    ) -> None:
        self._context, self._call, self._check = context, call, check
        self._may_cancel = may_cancel
        self._writing = asyncio.Lock()
        self._num_sent = 0
        self._has_answer = False
        self._is_ending = False  # an error or a final response has come
        self._has_client = True

    async def send(self) -> None:
        with contextlib.suppress(grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            while (message := await self._context.read()) is not grpc.aio.EOF:
                try:
                    await self._check(message)
                except RefusedError as refusal:
                    response = service_pb2.ModelStreamInferResponse(error_message=refusal.text)
                    await self._write(response.SerializeToString())
                    continue
                if not self._has_client:
                    break
                self._num_sent += 1
                await self._call.write(message)
            await self._call.done_writing()

    async def receive(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._has_answer = True
                self._is_ending |= message.startswith(_ERROR_TAG) or _FINAL in message
                if self._has_client:
                    await self._write(message)
                else:
                    self._cancel()

    async def _write(self, message: bytes) -> None:
        with contextlib.suppress(grpc.aio.BaseError):  # the client has gone
            async with self._writing:
                await self._context.write(message)

    def lose_client(self) -> None:
        """Cancels what goes on, or lets it end by itself."""
        self._has_client = False
        self._cancel()

    def _cancel(self) -> None:
        """Cancels the stream while one request is being answered.

        Cancelled before it is read, a stream is the last one that Triton ever takes; between an
        error and its end it is never forgotten; and a state of several requests is looked at once
        it is freed.
        """
        is_answering = self._num_sent == 1 and self._has_answer and not self._is_ending
        if self._may_cancel and is_answering:
            self._call.cancel()


def _run(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    _running.add(task)  # the loop itself would forget it
    task.add_done_callback(_running.discard)
    return task

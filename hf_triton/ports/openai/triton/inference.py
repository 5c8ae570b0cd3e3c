"""The calls by which models are asked, and what becomes of those that are left.

None is cancelled at a Triton itself. The model of a call to one on this machine is told that nobody
waits for it any more; a call to the proxy of ``serve`` elsewhere is cancelled there, which does the
same. What still comes of a call is read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import grpc

from generator.spec.runtime_rules import CALL
from hf_triton.ports.abandoned_requests import AbandonedRequests
from hf_triton.ports.infer_timeout import timeout_s_of
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.triton.request_headers import Metadata
from hf_triton.ports.openai.triton.statuses import of_status, of_text
from hf_triton.ports.refusal import NO_METHOD, RefusedError
from hf_triton.ports.repeats import DIED, Held, Repeats
from hf_triton.ports.streams import new_name
from hf_triton.ports.triton_channel import QUESTION_TIMEOUT_S

_CODES = {503: "unavailable"}
_CLOSE_S = 30.0  # as long as Triton itself waits for what is in flight
# The proxy of a gRPC port refuses it in words of its own.
_NO_METHOD_OF_TRITONS = "/inference.GRPCInferenceService/AskProxy"
# Of one client's request: those that go on though nobody waits for them.
LEFT: ContextVar[set[asyncio.Task[None]]] = ContextVar("LEFT")


class Inference:
    """The calls to one Triton; all raise ApiError."""

    def __init__(
        self, channel: Any, stub: Any, left: AbandonedRequests | None, repeats: Repeats
    ) -> None:
        """``left`` is None where Triton is elsewhere."""
        self._stub, self._left, self._repeats = stub, left, repeats
        self._ask_proxy = channel.unary_unary(_NO_METHOD_OF_TRITONS)
        self._ending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Waits a moment for the ends of those that were left."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=_CLOSE_S)

    async def infer(self, request: Any, metadata: Metadata, *, is_ours: bool = True) -> Any:
        """A ModelInferRequest's response; ``is_ours`` where its model is one of ours, which can be
        told that a caller has left: another takes each parameter for one of its own.
        """
        tries = _Tries(self._repeats, request, self._left if is_ours else None)
        try:
            while True:
                await tries.begin()
                try:
                    return await self._infer_once(request, metadata, tries)
                except (ApiError, _LostError) as error:
                    tries.go_on_after(error)
        finally:
            tries.end()

    async def stream(
        self, request: Any, metadata: Metadata, *, is_ours: bool = True
    ) -> AsyncGenerator[Any, None]:
        """The ModelInferResponses to a ModelInferRequest."""
        tries = _Tries(self._repeats, request, self._left if is_ours else None, streams=True)
        try:
            while True:
                await tries.begin()
                try:
                    once = self._stream_once(request, metadata, tries)
                    async with aclosing(once) as responses:
                        async for response in responses:
                            tries.held.passed_on()
                            yield response
                    return
                except (ApiError, _LostError) as error:
                    tries.go_on_after(error)
        finally:
            tries.end()

    async def _infer_once(self, request: Any, metadata: Metadata, tries: _Tries) -> Any:
        name = tries.name()
        call = self._stub.ModelInfer(request, metadata=metadata)
        answer = asyncio.ensure_future(_answer(call))
        try:
            with errors_translated():
                return await tries.first(answer)
        finally:
            if not call.done():
                self._leave(name, call, answer)

    async def _stream_once(
        self, request: Any, metadata: Metadata, tries: _Tries
    ) -> AsyncGenerator[Any, None]:
        name = tries.name()
        call = self._stub.ModelStreamInfer(iter((request,)), metadata=metadata)
        answer, error = None, ""
        try:
            with errors_translated():
                while True:
                    answer = asyncio.ensure_future(call.read())
                    response = await tries.first(answer)
                    if response is grpc.aio.EOF:
                        return
                    error = response.error_message
                    if error:
                        raise of_text(error)
                    yield response.infer_response
        finally:
            if error:
                # Its last response. (triton_grpc_error, with which it would be a gRPC status, is of
                # no use: streams that are cancelled beside such errors kill 24.10.)
                self._let_end(name, call, answer)
            elif not call.done():
                self._leave(name, call, answer)

    def _leave(self, name: str, call: Any, answer: Any) -> None:
        if self._left and name:
            self._left.tell(name)
        self._let_end(name, call, answer, may_cancel=self._left is None)

    def _let_end(self, name: str, call: Any, answer: Any, *, may_cancel: bool = False) -> None:
        ending = asyncio.create_task(self._read_to_end(name, call, answer, may_cancel))
        for tasks in (self._ending, LEFT.get(set())):
            tasks.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _read_to_end(self, name: str, call: Any, answer: Any, may_cancel: bool) -> None:
        try:
            with contextlib.suppress(grpc.aio.AioRpcError):
                if may_cancel and await self._asks_proxy():
                    call.cancel()
                else:
                    await _rest(call, answer)
        finally:
            if self._left:
                self._left.forget(name)

    async def _asks_proxy(self) -> bool:
        """Whether a proxy stands before Triton: it tells models of calls that are cancelled."""
        try:
            await self._ask_proxy(b"", timeout=QUESTION_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return bool(error.details() == NO_METHOD)
        return False


class _LostError(Exception):
    """The process of the model has died."""


class _Tries:
    """One request, asked again where its model dies or is away: until its answer begins, and a
    stream that can go on in another process until it ends.
    """

    def __init__(
        self,
        repeats: Repeats,
        request: Any,
        left: AbandonedRequests | None,
        *,
        streams: bool = False,
    ) -> None:
        """``left`` is None where the model can be told nothing."""
        self._request, self._left = request, left
        stream = new_name() if left and streams else ""
        self.held = Held(repeats, request.model_name, self._lose, self._describe, stream)
        self._is_first, self._is_lost = True, False
        self._waiting: asyncio.Future[Any] | None = None

    def _describe(self) -> tuple[float, str]:
        return timeout_s_of(self._request), str(self._request.id)

    def name(self) -> str:
        """Names the next call, "" where it has no name."""
        if self._left is None:
            return ""
        name = new_name()
        self._request.parameters[CALL].string_param = self.held.call_text(name)
        return name

    async def begin(self) -> None:
        """Waits until it may be asked. Raises ApiError."""
        may_go = self._is_first and self.held.may_go()
        self._is_first = self._is_lost = False
        if may_go:
            return
        try:
            await self.held.turn()
        except RefusedError as refusal:
            raise ApiError(refusal.status, refusal.text, code=_CODES.get(refusal.status)) from None

    async def first(self, answer: asyncio.Future[Any]) -> Any:
        """The answer, which goes on where whoever waits for it is cancelled: whoever waits for a
        call itself cancels the call. Raises _LostError where the model dies before.
        """
        if self._is_lost:
            raise _LostError
        waiting = self._waiting = asyncio.get_running_loop().create_future()

        def take(_: object) -> None:
            if waiting.done():
                answer.exception()  # seen by nobody else
            elif error := answer.exception():
                waiting.set_exception(error)
            else:
                waiting.set_result(answer.result())

        answer.add_done_callback(take)
        return await waiting

    def go_on_after(self, error: ApiError | _LostError) -> None:
        """Raises ApiError unless it is to be asked again."""
        if isinstance(error, _LostError):
            if not self.held.may_go_on:
                raise ApiError(503, DIED, code="unavailable") from None
            self.held.lost()
        elif not self.held.may_go_on or not self.held.is_away(error.message):
            raise error

    def end(self) -> None:
        """It is answered, or left."""
        self.held.end()

    def _lose(self) -> None:
        self._is_lost = True
        if self._waiting and not self._waiting.done():
            self._waiting.set_exception(_LostError())


async def _answer(call: Any) -> Any:
    return await call


async def _rest(call: Any, answer: Any) -> None:
    """Reads on from the ``answer`` that is awaited."""
    while await answer is not grpc.aio.EOF and not call.done():
        answer = call.read()


@contextlib.contextmanager
def errors_translated() -> Iterator[None]:
    """Raises ApiError for gRPC's."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise of_status(error.code(), error.details() or "") from None

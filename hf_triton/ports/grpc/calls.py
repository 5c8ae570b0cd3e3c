"""How the calls of the public gRPC port are answered: each checked, passed on to tritonserver or
refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import grpc

from generator.spec.runtime_rules import EMPTY_FINAL
from hf_triton.ports.bodies import Bodies
from hf_triton.ports.callers import Account, leave_after
from hf_triton.ports.grpc.connection import ClientConnection
from hf_triton.ports.grpc.messages import Output
from hf_triton.ports.grpc.port import GrpcPort
from hf_triton.ports.grpc.triton import GrpcTriton
from hf_triton.ports.refusal import RefusedError, refusal_of
from hf_triton.ports.repeats import Held
from hf_triton.ports.triton_calls import LEFT, STREAM, Asked, Metadata, TritonCalls, parameter

Result = TypeVar("Result")
_MOST_AT_ONCE = 64  # requests of one stream
_WANTS_EMPTY_FINAL = b"triton_enable_empty_final_response"
# A model that is told in vain sends no more than a flag.
_SAYS_EMPTY_FINAL = parameter(EMPTY_FINAL, bool_param=True)
_SEQUENCE = b"sequence_id"
_UNKNOWN = grpc.StatusCode.UNKNOWN
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    408: grpc.StatusCode.CANCELLED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """What answers them, within one event loop. ``by_peer`` are the clients' connections, by the
    names that they have at the gRPC server.
    """

    def __init__(self, port: GrpcPort, triton: GrpcTriton, calls: TritonCalls) -> None:
        self.port, self.triton, self.calls = port, triton, calls
        self.by_peer: dict[str, ClientConnection] = {}

    def service(self, details: Any) -> Any:
        """Of grpc: a caller is known before anything of a message is read."""
        method, given = details.method, tuple(details.invocation_metadata)
        try:
            account = self.port.account(method, given)
        except RefusedError as error:
            return grpc.stream_stream_rpc_method_handler(partial(self._refuse, error))
        if method == STREAM:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, given, account))
        return grpc.unary_unary_rpc_method_handler(partial(self._once, method, given, account))

    async def _refuse(self, error: BaseException, _requests: Any, context: Any) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            await context.abort(error.code(), error.details() or "")
        refusal = refusal_of(error)
        await context.abort(_CODES.get(refusal.status, _UNKNOWN), refusal.text)

    async def _once(
        self, method: str, given: Metadata, account: Account | None, message: bytes, context: Any
    ) -> bytes:
        try:
            with self._call(method, given, account, context) as call:
                return await call.answer(message)
        except Exception as error:
            await self._refuse(error, None, context)
            raise

    async def _stream(
        self, given: Metadata, account: Account | None, _requests: Any, context: Any
    ) -> None:
        try:
            if (first := await context.read()) is grpc.aio.EOF:
                raise RefusedError(400, "got a call without a whole message")
            with self._call(STREAM, given, account, context) as call:
                await call.answer_all(first)
        except Exception as error:  # noqa: BLE001, the edge of a request
            await self._refuse(error, None, context)

    @contextlib.contextmanager
    def _call(
        self, method: str, given: Metadata, account: Account | None, context: Any
    ) -> Iterator[_Call]:
        """A call of which a message has come, counted for its caller. Raises RefusedError."""
        connection = self.by_peer.get(context.peer())
        if connection is None:
            raise RefusedError(503, "the client has gone")
        account = account or self.port.account_of_address(method, connection.address)
        self.port.callers.enter(account)
        connection.count_call(1)
        left = set[asyncio.Task[None]]()
        LEFT.set(left)
        metadata = self.port.metadata_for_triton(method, given, account)
        try:
            yield _Call(self, method, context, connection, account, metadata)
        finally:
            connection.count_call(-1)
            leave_after(account, left)


class _Call:
    """One call, from its first message on."""

    def __init__(
        self,
        handlers: Handlers,
        method: str,
        context: Any,
        connection: ClientConnection,
        account: Account | None,
        metadata: Metadata,
    ) -> None:
        self._port, self._triton, self._calls = handlers.port, handlers.triton, handlers.calls
        self._method, self._context, self._metadata = method, context, metadata
        self._connection, self._account = connection, account
        self._writing = asyncio.Lock()
        self._are_decoupled: dict[str, bool] = {}  # models

    async def answer(self, message: bytes) -> bytes:
        """Raises RefusedError, AioRpcError with Triton's status."""
        message = self._taken(message)
        model, classified = self._port.check(self._method, message)
        answer = self._port.own_answer(self._method, message)
        if answer is None:
            await self._check_classified(model, classified)
            with _Buffered(self._port.bodies, len(message)) as buffered:
                asked = Asked(message, model, self._port.repeats.is_ours(model), buffered.may_stay)
                answer = await self._calls.unary(self._method, asked, self._metadata)
        return answer

    async def answer_all(self, first: bytes) -> None:
        """The messages of a stream, several at once. Raises RefusedError, AioRpcError."""
        running = [asyncio.create_task(self._answer_one(self._taken(first), ()))]
        reading: asyncio.Task[bytes | None] | None = None
        is_over = False
        try:
            while running or not is_over:
                if not (reading or is_over) and len(running) < _MOST_AT_ONCE:
                    reading = asyncio.create_task(self._read())
                both = {*running, *([reading] if reading else [])}
                done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                running = [task for task in running if not task.done()]
                if reading and reading.done():
                    message, reading = reading.result(), None
                    is_over = message is None
                    if message is not None:
                        self._port.count_another(self._account)
                        one = self._answer_one(message, tuple(running))
                        running.append(asyncio.create_task(one))
        finally:
            left: list[asyncio.Task[Any]] = [*running, *([reading] if reading else [])]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _answer_one(self, message: bytes, before: Sequence[asyncio.Task[None]]) -> None:
        """Sends the responses to one request of a stream, of which others came ``before``."""
        model, classified = self._port.check(self._method, message)
        await self._check_classified(model, classified)
        if before and _SEQUENCE in message:
            await asyncio.wait(before)
        must_wait = before and not await self._is_decoupled(model)
        if _WANTS_EMPTY_FINAL in message:
            message += _SAYS_EMPTY_FINAL
        with _Buffered(self._port.bodies, len(message)) as buffered:
            asked = Asked(message, model, self._port.repeats.is_ours(model), buffered.may_stay)
            async with aclosing(self._calls.stream(asked, self._metadata)) as responses:
                if not must_wait:
                    async for response in responses:
                        await self._write(response)
                    return
                # Triton answers in turn where each request has one answer. All of it is taken
                # first: one that runs alone ends then, for which those before may wait.
                answer = [response async for response in responses]
        await asyncio.wait(before)
        for response in answer:
            await self._write(response)

    async def _write(self, response: bytes) -> None:
        async with self._writing:
            await self._context.write(response)

    async def _is_decoupled(self, model: str) -> bool:
        if model not in self._are_decoupled:
            ask = partial(self._triton.is_decoupled, model)
            self._are_decoupled[model] = await self._asked(model, ask)
        return self._are_decoupled[model]

    async def _read(self) -> bytes | None:
        message = await self._context.read()
        return None if message is grpc.aio.EOF else self._taken(message)

    def _taken(self, message: bytes) -> bytes:
        self._connection.take_message(len(message))
        return self._port.expanded(message)

    async def _check_classified(self, model: str, classified: Sequence[Output]) -> None:
        """Where tritonserver must be asked about the model first. Raises RefusedError."""
        for output in classified:
            await self._asked(model, partial(self._triton.check_classified, output))

    async def _asked(self, model: str, ask: Callable[[], Awaitable[Result]]) -> Result:
        """What tritonserver says of a model, for which it is waited. Raises RefusedError."""
        held = Held(self._port.repeats, model, lambda: None)
        try:
            if self._port.repeats.is_asleep(model):
                await held.turn()
            while True:
                try:
                    return await ask()
                except RefusedError as error:
                    if not held.is_away(error.text):
                        raise
                await held.turn()
        finally:
            held.end()


class _Buffered:
    """A message that this process holds. Raises RefusedError where that is too much."""

    def __init__(self, bodies: Bodies, num_bytes: int) -> None:
        if not bodies.has_room(num_bytes, num_bytes):
            raise RefusedError(503, "too many large requests come at once; try again")
        self._bodies, self._num_bytes = bodies, num_bytes
        bodies.num_bytes += num_bytes

    def may_stay(self) -> bool:
        """Whether it may be held still, though tritonserver has it."""
        stays = self._bodies.may_keep(self._num_bytes)
        if not stays:
            self.__exit__()
        return stays

    def __enter__(self) -> _Buffered:
        return self

    def __exit__(self, *_: object) -> None:
        self._bodies.num_bytes -= self._num_bytes
        self._num_bytes = 0

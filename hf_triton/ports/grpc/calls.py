"""The public gRPC port's server: which calls a client may make, how many at once, and how they are
answered: each checked, passed on to tritonserver or refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from generator.render import model_config
from hf_triton.ports.bodies import SMALL_BYTES, Buffered, expanded
from hf_triton.ports.callers import Account, counted
from hf_triton.ports.grpc.connection import ClientConnection
from hf_triton.ports.grpc.messages import checked, model_of
from hf_triton.ports.port import GRACE_S, Listener, Port, Shared
from hf_triton.ports.refusal import GRPC_ADMIN_HEADER, RefusedError, refusal_of
from hf_triton.ports.triton_calls import (
    INFER,
    SERVICE,
    STREAM,
    Asked,
    Metadata,
    TritonCalls,
    parameter,
    triton_channel,
)
from hf_triton.runtime.request.request_parameters import CALLER, EMPTY_FINAL
from hf_triton.tritonserver.listen import Listen

_MAX_AT_ONCE = 64  # requests of one stream
_MAX_CALLS = 1024  # of one connection at once
_MAX_PENDING = 1 << 30  # calls; those of each connection have their limit
HANDSHAKE_MS = 10_000
_PING_EVERY_MS = 1000  # so often a client may ask whether its connection lives
_WANTS_EMPTY_FINAL = b"triton_enable_empty_final_response"
# A model that is told in vain sends no more than a flag.
_SAYS_EMPTY_FINAL = parameter(EMPTY_FINAL, bool_param=True)
_SEQUENCE = b"sequence_id"
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

_METHODS_OF_TRITON = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
_HEALTH = "/grpc.health.v1.Health/Check"
_METHODS = {*(f"{SERVICE}{method.name}" for method in _METHODS_OF_TRITON), _HEALTH}
# Methods that change a server or reach into its memory.
_ADMIN = {one for one in _METHODS if re.search("RepositoryModel|Setting|SharedMemory", one)}
_OPEN = {_HEALTH, f"{SERVICE}ServerLive", f"{SERVICE}ServerReady"}
_READY, _LOAD = f"{SERVICE}ModelReady", f"{SERVICE}RepositoryModelLoad"
_IS_READY: bytes = service_pb2.ModelReadyResponse(ready=True).SerializeToString()
_TOLD_BY_LOADED = {f"{SERVICE}ModelMetadata", f"{SERVICE}ModelConfig"}
_KEY = "authorization"
# triton_grpc_error mixed with good calls ends tritonserver, 24.10 and 26.08 alike. The user agent
# is the connection's own.
_NOT_PASSED_ON = {CALLER, GRPC_ADMIN_HEADER, "triton_grpc_error", "user-agent"}


@contextlib.asynccontextmanager
async def grpc_listener(listen: Listen, shared: Shared) -> AsyncIterator[Listener]:
    """Runs the server behind the port while the block runs; at its end no call is under way."""
    channel = triton_channel(listen.triton_grpc)
    calls = TritonCalls(channel, shared.retries)
    port = GrpcPort(shared, calls)
    server_socket = f"{listen.grpc_socket}.port"
    server = grpc.aio.server(handlers=(port,), options=_options(port.bodies.max_bytes))
    port.stop_server = partial(server.stop, GRACE_S)
    server.add_insecure_port(f"unix:{server_socket}")

    def new() -> asyncio.Protocol:
        return ClientConnection(port, server_socket, port.by_peer).protocol()

    await server.start()
    try:
        yield Listener(port, new, listen.grpc_port, "--grpc-port")
    finally:
        await server.stop(0)
        await calls.close()
        await channel.close()


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # A compressed message may become a thousand times as large: bodies.py expands it.
        ("grpc.per_message_decompression", 0),
        ("grpc.max_concurrent_streams", _MAX_CALLS),
        # With a flood of calls waiting for this process, gRPC would cancel any caller's at random.
        ("grpc.server.max_pending_requests", _MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_MS),
    ]


class GrpcPort(Port, grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers the calls. ``by_peer`` are the clients' connections, by the names that they have at
    the gRPC server; ``stop_server`` ends that once they are answered.
    """

    alpn = ("h2",)
    stop_server: Callable[[], Coroutine[Any, Any, None]]

    def __init__(self, shared: Shared, calls: TritonCalls) -> None:
        super().__init__(shared)
        self.calls = calls
        self.by_peer: dict[str, ClientConnection] = {}
        self._not_passed_on = _NOT_PASSED_ON | ({_KEY} if self.callers.have_keys else set())

    def service(self, details: Any) -> Any:
        """Finds the caller before anything of a message is read."""
        method, given = details.method, tuple(details.invocation_metadata)
        try:
            account = self.account(method, given)
        except RefusedError as error:
            return grpc.stream_stream_rpc_method_handler(partial(self._refuse, error))
        if method == STREAM:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, given, account))
        return grpc.unary_unary_rpc_method_handler(partial(self._once, method, given, account))

    async def _refuse(self, error: BaseException, _requests: Any, context: Any) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            await context.abort(error.code(), error.details() or "")
        refusal = refusal_of(error)
        await context.abort(_CODES.get(refusal.status, grpc.StatusCode.UNKNOWN), refusal.text)

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
        """A call of which a message has come, counted for its caller: the ``account`` of its key,
        else that of its address. Raises RefusedError.
        """
        connection = self.by_peer.get(context.peer())
        if connection is None:
            raise RefusedError(503, "the client has disconnected")
        if not (self.callers.have_keys or method in _OPEN):
            account = self.callers.of(None, connection.address)
        metadata = [header for header in given if header[0] not in self._not_passed_on]
        if account and account.alias:
            metadata.append((CALLER, account.alias))
        with counted(account), connection.busy():
            yield _Call(self, method, context, connection, account, tuple(metadata))

    def begin_stop(self) -> None:
        super().begin_stop()
        self.run(self.stop_server())

    def account(self, method: str, metadata: Metadata) -> Account | None:
        """The account of a caller by its key, None without keys. Raises RefusedError."""
        if method not in _METHODS:
            raise RefusedError(501, "got a method that this server does not have")
        given = dict[str, Any](metadata)
        # A proxy that reads another one than we do would decide by another key.
        for name in (_KEY, GRPC_ADMIN_HEADER):
            if name in given and sum(name == one for one, _ in metadata) > 1:
                raise RefusedError(400, f"got the header {name} twice")
        if method in _ADMIN:
            key = given.get(GRPC_ADMIN_HEADER, "")
            self.check_admin_key(key.encode(errors="surrogateescape"), GRPC_ADMIN_HEADER)
        if method in _OPEN or not self.callers.have_keys:
            return None
        key = given.get(_KEY)
        return self.callers.of(None if key is None else key.encode(), "")

    def check(self, method: str, message: bytes) -> str:
        """The model that must be there. Raises RefusedError for what does not go on."""
        if method in (INFER, STREAM):
            model, classified = checked(message)
            self.check_classified(model, classified)
            return model
        if method != _LOAD and len(message) > SMALL_BYTES:
            raise RefusedError(400, f"got {len(message)} bytes, allowed: {SMALL_BYTES}")
        name = model_of(message) if method in _TOLD_BY_LOADED else ""
        return name if self.retries.model(name).is_asleep else ""


@dataclass
class _Call:
    """One call, from its first message on."""

    _port: GrpcPort
    _method: str
    _context: Any
    _connection: ClientConnection
    _account: Account | None
    _metadata: Metadata
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Reads a model's config once a stream, however many messages it has."""
        file = self._port.config_file
        self._answers_once = cache(lambda model: model_config.answers_once(file(model)))

    async def answer(self, message: bytes) -> bytes:
        """Raises RefusedError, AioRpcError with Triton's status."""
        message = self._taken(message)
        model = self._port.check(self._method, message)
        if self._method == _READY and self._port.retries.model(model_of(message)).is_asleep:
            return _IS_READY  # its next request has it loaded
        with self._buffered(message, model) as asked:
            return await self._port.calls.unary(self._method, asked, self._metadata)

    async def answer_all(self, first: bytes) -> None:
        """The messages of a stream, several at once. Raises RefusedError, AioRpcError."""
        running = [asyncio.create_task(self._answer_one(self._taken(first), ()))]
        reading: asyncio.Task[bytes | None] | None = None
        is_over = False
        try:
            while running or not is_over:
                if not (reading or is_over) and len(running) < _MAX_AT_ONCE:
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
                        if self._account:
                            self._account.count()
                        one = self._answer_one(message, tuple(running))
                        running.append(asyncio.create_task(one))
        finally:
            left: list[asyncio.Task[Any]] = [*running, *([reading] if reading else [])]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _answer_one(self, message: bytes, before: Sequence[asyncio.Task[None]]) -> None:
        """Sends the responses to one request of a stream, of which others came ``before``."""
        model = self._port.check(self._method, message)
        if before and _SEQUENCE in message:
            await asyncio.wait(before)
        must_wait = before and self._answers_once(model)
        if _WANTS_EMPTY_FINAL in message:
            message += _SAYS_EMPTY_FINAL
        with self._buffered(message, model) as asked:
            async with aclosing(self._port.calls.stream(asked, self._metadata)) as responses:
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

    async def _read(self) -> bytes | None:
        message = await self._context.read()
        return None if message is grpc.aio.EOF else self._taken(message)

    def _taken(self, message: bytes) -> bytes:
        """A message as it was before its compression. Raises RefusedError.

        None of Triton's begins as a compressed one does: with a field 15, or one of no type.
        """
        self._connection.take_message(len(message))
        is_zlib = message[:1] == b"x" and int.from_bytes(message[:2], "big") % 31 == 0
        if is_zlib or message[:2] == b"\x1f\x8b":
            return expanded(message, self._port.bodies.max_bytes, "message")
        return message

    @contextlib.contextmanager
    def _buffered(self, message: bytes, model: str) -> Iterator[Asked]:
        """A message that this process holds. Raises RefusedError where that is too much."""
        buffered = Buffered(self._port.bodies)
        buffered.take(len(message))
        try:
            is_ours = self._port.retries.model(model).is_ours
            yield Asked(message, model, is_ours, buffered.keep)
        finally:
            buffered.free()

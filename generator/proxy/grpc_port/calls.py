"""gRPC calls, checked and passed on to tritonserver, with what is said beside them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
from tritonclient.grpc import service_pb2

from generator.proxy.callers import Account, Callers
from generator.proxy.grpc_port.messages import checked
from generator.proxy.grpc_port.stream import pass_stream_on
from generator.proxy.grpc_port.triton import GrpcTriton, Metadata
from generator.proxy.refusal import RefusedError
from generator.spec.runtime_rules import CALLER

_SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
_PREFIX = f"/{_SERVICE.full_name}/"
_HEALTH = "/grpc.health.v1.Health/Check"
_STREAM, _INFER, _LOAD = (
    f"{_PREFIX}{name}" for name in ("ModelStreamInfer", "ModelInfer", "RepositoryModelLoad")
)
_UNARY = {f"{_PREFIX}{method.name}" for method in _SERVICE.methods} - {_STREAM} | {_HEALTH}
_OPEN = {_HEALTH, f"{_PREFIX}ServerLive", f"{_PREFIX}ServerReady"}
_MAX_SMALL_BYTES = 65_536  # of a request that is a name or two, or some settings
# Streams that are cancelled beside an error end tritonserver where triton_grpc_error is asked for
# (before 26.04); without it the error comes in the stream, as by default.
_NOT_PASSED_ON = {CALLER, "triton_grpc_error", "user-agent"}
_KEY = "authorization"
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


class GrpcCalls(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """The methods of Triton's services; messages are bytes, and stay as they are.

    What waits for tritonserver takes ``max_bytes_in_flight`` at most.
    """

    def __init__(self, triton: GrpcTriton, callers: Callers, max_bytes_in_flight: int) -> None:
        self._triton = triton
        self._callers = callers
        self._num_bytes_left = max_bytes_in_flight
        self._handlers = {
            method: grpc.unary_unary_rpc_method_handler(self._unary(method)) for method in _UNARY
        }
        self._handlers[_STREAM] = grpc.stream_stream_rpc_method_handler(self._stream)

    def service(self, details: Any) -> Any:
        """The handler of a method, None where Triton has none."""
        return self._handlers.get(details.method)

    def _unary(self, method: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        ask = self._triton.unary(method)

        async def answer(message: bytes, context: Any) -> bytes:
            account = None
            self._num_bytes_left -= len(message)
            try:
                if method not in _OPEN:
                    account = self._enter(context)
                await self._check(method, message)
                call = ask(message, metadata=self._passed_on(context, account))
                await self._triton.wait_for(call)
                response: bytes = await call
                await _pass_metadata_on(call, context)
                return response
            except RefusedError as refusal:
                await _abort(context, refusal)
            except grpc.aio.AioRpcError as error:
                await self._abort_as(context, error)
            finally:
                self._num_bytes_left += len(message)
                if account:
                    account.leave()

        return answer

    async def _stream(self, _messages: Any, context: Any) -> None:
        account = None
        try:
            account = self._enter(context)
            call = self._triton.stream(_STREAM)(metadata=self._passed_on(context, account))

            async def check(message: bytes) -> None:
                await self._check(_INFER, message)

            may_cancel = self._triton.bears_cancels
            await pass_stream_on(context, call, check, may_cancel=may_cancel)
            await _pass_metadata_on(call, context)
        except RefusedError as refusal:
            await _abort(context, refusal)
        except grpc.aio.AioRpcError as error:
            await self._abort_as(context, error)
        finally:
            if account:
                account.leave()

    def _enter(self, context: Any) -> Account | None:
        """Whose call it is, which counts from now on. Raises RefusedError."""
        key = dict(context.invocation_metadata() or ()).get(_KEY, "")
        given = key if isinstance(key, bytes) else key.encode(errors="surrogateescape")
        account = self._callers.of(given or None, _address(context.peer()))
        self._callers.enter(account)
        return account

    async def _check(self, method: str, message: bytes) -> None:
        """Raises RefusedError for what is not passed on."""
        if self._num_bytes_left < 0:
            raise RefusedError(
                503, "more large requests are being sent than there is room for; try again"
            )
        if method == _INFER:
            # Without keys it may be an OpenAI API that asks, and knows them (--triton-url).
            for output in checked(message, may_name_caller=not self._callers.have_keys):
                await self._triton.check_classified(output)
        elif method != _LOAD and len(message) > _MAX_SMALL_BYTES:
            text = f"got {len(message)} bytes, allowed: {_MAX_SMALL_BYTES}"
            raise RefusedError(400, text)

    def _passed_on(self, context: Any, account: Account | None) -> Metadata:
        """What the client says beside its messages, and who it is; its key stays here."""
        leave_out = _NOT_PASSED_ON | {_KEY} if self._callers.have_keys else _NOT_PASSED_ON
        given = context.invocation_metadata() or ()
        metadata = [(name, value) for name, value in given if name not in leave_out]
        if account and account.alias:
            metadata.append((CALLER, account.alias))
        return metadata

    async def _abort_as(self, context: Any, error: grpc.aio.AioRpcError) -> NoReturn:
        code, details = self._triton.status_of(error)
        await context.abort(code, details, tuple(error.trailing_metadata() or ()))
        raise error


async def _pass_metadata_on(call: Any, context: Any) -> None:
    initial = await call.initial_metadata()
    if initial:
        await context.send_initial_metadata(tuple(initial))
    trailing = await call.trailing_metadata()
    if trailing:
        context.set_trailing_metadata(tuple(trailing))


async def _abort(context: Any, refusal: RefusedError) -> NoReturn:
    await context.abort(_CODES.get(refusal.status, grpc.StatusCode.UNKNOWN), refusal.text)
    raise refusal


def _address(peer: str) -> str:
    """Of ``ipv4:127.0.0.1:50000`` or ``ipv6:%5B::1%5D:50000`` what stands for the machine."""
    return peer.rpartition(":")[0]

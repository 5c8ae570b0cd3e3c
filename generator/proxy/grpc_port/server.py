"""The gRPC server of the public port; knows no message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from generator.errors import ServerError
from generator.proxy.callers import Callers
from generator.proxy.grpc_port.calls import GrpcCalls
from generator.proxy.grpc_port.triton import GrpcTriton
from generator.proxy.settings import MIB, ProxySettings, Tls
from generator.server.listen import bracketed

_GRACE_S = 30.0  # as long as Triton itself waits for what is in flight
_IN_FLIGHT_MIB = 512  # of requests, all callers' together
_MAX_STREAMS = 1024  # of one connection at once
_HANDSHAKE_MS = 10_000


async def serve_grpc(
    settings: ProxySettings, stop: asyncio.Event, on_ready: Callable[[], None]
) -> None:
    """Serves until ``stop``; then takes no more calls, and lets those in flight end.

    Raises ServerError where the port can't be listened on.
    """
    access = settings.access
    triton = GrpcTriton(settings.grpc_socket)
    calls = GrpcCalls(triton, Callers(access), _IN_FLIGHT_MIB * MIB)
    server = grpc.aio.server(options=_options(access.max_body_mib * MIB))
    server.add_generic_rpc_handlers((calls,))
    try:
        _listen(server, settings)
        await triton.learn_version()
        await server.start()
        on_ready()
        await stop.wait()
        await server.stop(_GRACE_S)
    finally:
        await triton.close()


def _options(max_message_bytes: int) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.so_reuseport", 0),  # a second server would share the port, unnoticed
    ]


def _listen(server: Any, settings: ProxySettings) -> None:
    address = f"{bracketed(settings.host)}:{settings.grpc_port}"
    tls = settings.access.tls
    try:
        if tls:
            server.add_secure_port(address, _credentials(tls))
        else:
            server.add_insecure_port(address)
    except RuntimeError:
        what = f"can't listen on port {settings.grpc_port} of '{settings.host}'; see --grpc-port"
        raise ServerError(what) from None


def _credentials(tls: Tls) -> Any:
    try:
        key, chain = Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes()
    except OSError as error:
        raise ServerError(f"{error.filename}: can't be read: {error.strerror}") from None
    return grpc.ssl_server_credentials([(key, chain)])

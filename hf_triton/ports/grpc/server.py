"""The public gRPC port, from its start to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import grpc

from hf_triton.ports.abandoned_requests import AbandonedRequests
from hf_triton.ports.callers import Callers
from hf_triton.ports.grpc.calls import Handlers
from hf_triton.ports.grpc.connection import ClientConnection
from hf_triton.ports.grpc.port import GrpcPort
from hf_triton.ports.grpc.triton import GrpcTriton
from hf_triton.ports.port import Door, serve
from hf_triton.ports.repeats import Repeats
from hf_triton.ports.settings import ProxySettings
from hf_triton.ports.tls import tls_context
from hf_triton.ports.triton_calls import TritonCalls
from hf_triton.ports.triton_channel import triton_channel

_GRACE_S = 30.0  # as long as Triton itself waits for what is in flight
_MAX_CALLS = 1024  # of one connection at once
_HANDSHAKE_MS = 10_000
_PING_EVERY_MS = 1000  # so often a client may ask whether its connection lives


async def serve_grpc(
    settings: ProxySettings,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    repeats: Repeats,
    callers: Callers,
) -> None:
    """Serves until ``stop``; then takes no more calls, and lets those in flight end.

    Raises ServerError where the port can't be listened on.
    """
    channel = triton_channel(f"unix:{settings.grpc_socket}")
    left = AbandonedRequests(settings.abandoned_requests)
    calls = TritonCalls(channel, left, repeats)
    port = GrpcPort(settings.access, settings.admin_key, repeats, callers)
    handlers = Handlers(port, GrpcTriton(channel), calls)
    server_socket = f"{settings.grpc_socket}.port"
    server = grpc.aio.server(handlers=(handlers,), options=_options(port.max_body_bytes))
    port.stop_server = partial(server.stop, _GRACE_S)
    server.add_insecure_port(f"unix:{server_socket}")
    tls = tls_context(settings.access.tls)
    if tls:
        tls.set_alpn_protocols(["h2"])
    await server.start()
    try:
        new = partial(ClientConnection, port, server_socket, handlers.by_peer)
        door = Door(port, new, settings.grpc_port, "--grpc-port", tls)
        await serve((door,), settings.host, stop, on_ready, _GRACE_S)
    finally:
        await server.stop(0)
        await calls.close()
        await channel.close()


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # What is compressed may become a thousand times as large: compressed.py expands it.
        ("grpc.per_message_decompression", 0),
        ("grpc.max_concurrent_streams", _MAX_CALLS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_MS),
    ]

"""The public gRPC port, from its start to its end."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

import grpc

from hf_triton.ports.abandoned_requests import AbandonedRequests
from hf_triton.ports.grpc.calls import Handlers
from hf_triton.ports.grpc.connection import ClientConnection
from hf_triton.ports.grpc.port import GrpcPort
from hf_triton.ports.grpc.triton import GrpcTriton
from hf_triton.ports.port import GRACE_S, Door, Shared
from hf_triton.ports.settings import TritonPorts
from hf_triton.ports.tls import tls_context
from hf_triton.ports.triton_calls import TritonCalls
from hf_triton.ports.triton_channel import triton_channel

_MAX_CALLS = 1024  # of one connection at once
_MAX_PENDING = 1 << 30  # calls; those of each connection have their limit
_HANDSHAKE_MS = 10_000
_PING_EVERY_MS = 1000  # so often a client may ask whether its connection lives


@contextlib.asynccontextmanager
async def grpc_door(
    ports: TritonPorts, shared: Shared, left: AbandonedRequests
) -> AsyncIterator[Door]:
    """What answers behind the port while the block runs; at its end no call is under way."""
    channel = triton_channel(f"unix:{ports.grpc_socket}")
    calls = TritonCalls(channel, left, shared.repeats)
    port = GrpcPort(shared)
    handlers = Handlers(port, GrpcTriton(channel), calls)
    server_socket = f"{ports.grpc_socket}.port"
    server = grpc.aio.server(handlers=(handlers,), options=_options(port.bodies.max_bytes))
    port.stop_server = partial(server.stop, GRACE_S)
    server.add_insecure_port(f"unix:{server_socket}")
    tls = tls_context(shared.access.tls)
    if tls:
        tls.set_alpn_protocols(["h2"])
    await server.start()
    try:
        new = partial(ClientConnection, port, server_socket, handlers.by_peer)
        yield Door(port, new, ports.grpc_port, "--grpc-port", tls)
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
        # Of a flood's calls that wait for this process, gRPC would cancel others' at random.
        ("grpc.server.max_pending_requests", _MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_MS),
    ]

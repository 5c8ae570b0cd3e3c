"""The public gRPC port, from its start to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from hf_triton.ports.abandoned_requests import AbandonedRequests
from hf_triton.ports.grpc.connection import GrpcConnection
from hf_triton.ports.grpc.port import GrpcPort
from hf_triton.ports.grpc.triton import GrpcTriton
from hf_triton.ports.port import Door, serve
from hf_triton.ports.repeats import Repeats
from hf_triton.ports.settings import ProxySettings
from hf_triton.ports.tls import tls_context

_GRACE_S = 30.0  # as long as Triton itself waits for what is in flight


async def serve_grpc(
    settings: ProxySettings,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    repeats: Repeats | None = None,
) -> None:
    """Serves until ``stop``; then takes no more calls, and lets those in flight end.

    Raises ServerError where the port can't be listened on.
    """
    triton = GrpcTriton(settings.grpc_socket)
    left = AbandonedRequests(settings.abandoned_requests)
    socket, key = settings.grpc_socket, settings.admin_key
    port = GrpcPort(settings.access, socket, triton, left, key, repeats)
    tls = tls_context(settings.access.tls)
    if tls:
        tls.set_alpn_protocols(["h2"])
    try:
        new = partial(GrpcConnection, port)
        door = Door(port, new, settings.grpc_port, "--grpc-port", tls)
        await serve((door,), settings.host, stop, on_ready, _GRACE_S)
    finally:
        await triton.close()

"""Listens on the public HTTP and metrics ports, and stops gracefully."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from hf_triton.ports.abandoned_requests import AbandonedRequests
from hf_triton.ports.callers import Callers
from hf_triton.ports.http.connection import HttpConnection
from hf_triton.ports.http.proxy import HttpProxy
from hf_triton.ports.port import Door, serve
from hf_triton.ports.repeats import Repeats
from hf_triton.ports.settings import EVERYBODY, ProxySettings
from hf_triton.ports.tls import tls_context


async def serve_http(
    settings: ProxySettings,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    repeats: Repeats,
    callers: Callers,
) -> None:
    """Serves both ports until ``stop``, and then until every answer under way is complete.

    Raises ServerError where a port can't be listened on.
    """
    access = settings.access
    left = AbandonedRequests(settings.abandoned_requests) if settings.abandoned_requests else None
    triton = HttpProxy(access, settings.http_socket, settings.admin_key, repeats, left, callers)
    metrics = HttpProxy(EVERYBODY, settings.metrics_socket)
    tls, new = tls_context(access.tls), partial(partial, HttpConnection)
    doors = (
        Door(triton, new(triton), settings.http_port, "--http-port", tls),
        # For scrapers of one's own network, as the health port is.
        Door(metrics, new(metrics), settings.metrics_port, "--metrics-port", None),
    )
    await serve(doors, settings.host, stop, on_ready)

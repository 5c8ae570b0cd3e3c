"""Listens on the public HTTP and metrics ports, and stops gracefully."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from hf_triton.ports.accepting import accept
from hf_triton.ports.http.connection import HttpConnection
from hf_triton.ports.http.proxy import HttpProxy
from hf_triton.ports.settings import EVERYBODY, ProxySettings
from hf_triton.ports.tls import tls_context

_SWEEP_EVERY_S = 1.0


async def serve_http(
    settings: ProxySettings, stop: asyncio.Event, on_ready: Callable[[], None]
) -> None:
    """Serves both ports until ``stop``, and then until every answer under way is complete.

    Raises ServerError where a port can't be listened on.
    """
    access = settings.access
    tls = tls_context(access.tls)
    proxies = (
        (
            HttpProxy(access, settings.http_socket, settings.admin_key),
            *(settings.http_port, "--http-port", tls),
        ),
        # For scrapers of one's own network, as the health port is.
        (
            HttpProxy(EVERYBODY, settings.metrics_socket),
            settings.metrics_port,
            "--metrics-port",
            None,
        ),
    )
    servers = []
    for proxy, port, flag, encryption in proxies:
        new = partial(HttpConnection, proxy)
        servers.append(await accept(new, settings.host, port, flag, encryption))
    on_ready()
    while not stop.is_set():
        for proxy, *_ in proxies:
            proxy.sweep()
        await _wait(stop, _SWEEP_EVERY_S)
    for server, (proxy, *_) in zip(servers, proxies, strict=True):
        server.close()
        proxy.begin_stop()
    while any(proxy.num_connections for proxy, *_ in proxies):
        for proxy, *_ in proxies:
            proxy.sweep()
        await asyncio.sleep(0.05)


async def _wait(stop: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), timeout_s)
    except asyncio.TimeoutError:
        return

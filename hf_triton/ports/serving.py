"""All ports of one process, from their start to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from hf_triton.ports.grpc.calls import grpc_listener
from hf_triton.ports.http.connection import HttpConnection
from hf_triton.ports.http.proxy import HttpProxy
from hf_triton.ports.openai.app import openai_listener
from hf_triton.ports.port import Listener, Shared, serve, tls_context
from hf_triton.ports.retries import RetryCoordinator
from hf_triton.ports.settings import ProxySettings


async def serve_ports(
    settings: ProxySettings,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    retries: RetryCoordinator,
) -> None:
    """Serves until ``stop``; then accepts nothing more, and lets what is in flight end.

    Raises ServerError where a port can't be listened on.
    """
    common = Shared(settings.access, settings.admin_key, retries, settings.repository)
    listeners: list[Listener] = []
    async with AsyncExitStack() as stack:
        listen = settings.listen
        if listen.sockets:
            proxy = HttpProxy(common, listen.http_socket)
            tls = tls_context(common.access.tls)
            # For scrapers of one's own network, as the health port is.
            metrics = HttpProxy(Shared(), listen.metrics_socket)
            scraped = partial(HttpConnection, metrics)
            listeners += [
                Listener(
                    proxy, partial(HttpConnection, proxy), listen.http_port, "--http-port", tls
                ),
                Listener(metrics, scraped, listen.metrics_port, "--metrics-port", None),
                await stack.enter_async_context(grpc_listener(listen, common)),
            ]
        if settings.openai:
            openai = openai_listener(settings.openai, common)
            listeners.append(await stack.enter_async_context(openai))
        await serve(listeners, listen.host, stop, on_ready)

"""All ports of one process, from their start to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial

from hf_triton.ports.abandoned_requests import AbandonedRequests
from hf_triton.ports.grpc.server import grpc_door
from hf_triton.ports.http.connection import HttpConnection
from hf_triton.ports.http.proxy import HttpProxy
from hf_triton.ports.openai.server import openai_door
from hf_triton.ports.port import Door, Shared, serve, shared
from hf_triton.ports.repeats import Repeats
from hf_triton.ports.settings import ProxySettings, TritonPorts
from hf_triton.ports.tls import tls_context


async def serve_ports(
    settings: ProxySettings,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    repeats: Repeats | None = None,
) -> None:
    """Serves until ``stop``; then accepts nothing more, and lets what is in flight end.

    Raises ServerError where a port can't be listened on, or a Triton elsewhere can't be reached.
    """
    together = shared(settings.access, settings.admin_key, repeats)
    doors: list[Door] = []
    async with AsyncExitStack() as stack:
        if settings.triton:
            left = AbandonedRequests(settings.abandoned_requests)
            doors += _http_doors(settings.triton, together, left)
            grpc = grpc_door(settings.triton, together, left)
            doors.append(await stack.enter_async_context(grpc))
        if settings.openai:
            openai = openai_door(settings.openai, together, settings.abandoned_requests)
            doors.append(await stack.enter_async_context(openai))
        await serve(doors, settings.host, stop, on_ready)


def _http_doors(ports: TritonPorts, together: Shared, left: AbandonedRequests) -> Iterator[Door]:
    new = partial(partial, HttpConnection)
    triton = HttpProxy(together, ports.http_socket, left)
    tls = tls_context(together.access.tls)
    yield Door(triton, new(triton), ports.http_port, "--http-port", tls)
    # For scrapers of one's own network, as the health port is.
    metrics = HttpProxy(shared(), ports.metrics_socket)
    yield Door(metrics, new(metrics), ports.metrics_port, "--metrics-port", None)

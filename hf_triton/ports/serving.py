"""All ports, Triton's and OpenAI's, as the child of ``hf-triton serve``.

    python -m hf_triton.ports.serving    its settings are in the environment

Writes a line to stdout when it listens on all, then an empty one a second. Stops at SIGTERM, and at
once when stdin closes: then whoever started it is gone. Its errors are on stderr, and end in 1.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import uvloop

from generator.errors import EXIT_OK, GeneratorError
from hf_triton.ports.grpc.calls import grpc_listener
from hf_triton.ports.http.connection import HttpConnection
from hf_triton.ports.http.proxy import HttpProxy
from hf_triton.ports.openai.app import openai_listener
from hf_triton.ports.port import Listener, Shared, serve
from hf_triton.ports.refusal import report_bug
from hf_triton.ports.retries import RetryCoordinator
from hf_triton.ports.settings import ProxySettings
from hf_triton.tritonserver.child_process import Parent, say_line, settings_as, tell_ready

_SWITCH_S = 0.001  # after which a thread that reads a large body lets the event loop go on


def main() -> int:
    settings = settings_as(ProxySettings)
    sys.setswitchinterval(_SWITCH_S)
    try:
        uvloop.run(_serve(settings))
    except GeneratorError as error:
        sys.stderr.write(f"hf-triton: the ports' process: {error}\n")
        return error.exit_code
    return EXIT_OK


async def _serve(settings: ProxySettings) -> None:
    parent = Parent()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: report_bug("the ports' process failed", context.get("exception"))
    )
    retries = RetryCoordinator(settings.abandoned_requests, say_line, settings.repository)
    parent.follow(retries.follow)
    await serve_ports(settings, parent.stop, tell_ready, retries)


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
            stack.enter_context(common.callers.followed(listen.uses_pipe))
            proxy = HttpProxy(common, listen.http_socket)
            # For scrapers of one's own network, as the health port is.
            metrics = HttpProxy(Shared(), listen.metrics_socket, common.callers.metrics)
            scraped = partial(HttpConnection, metrics)
            listeners += [
                Listener(proxy, partial(HttpConnection, proxy), listen.http_port, "--http-port"),
                Listener(metrics, scraped, listen.metrics_port, "--metrics-port"),
                await stack.enter_async_context(grpc_listener(listen, common)),
            ]
        if settings.openai:
            openai = openai_listener(settings.openai, listen, common)
            listeners.append(await stack.enter_async_context(openai))
        await serve(listeners, listen.host, stop, on_ready)


if __name__ == "__main__":
    sys.exit(main())

"""OpenAI's port, from its start to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator

from aiohttp import web
from msgspec.structs import replace

from generator.errors import ServerError
from hf_triton.ports.openai.adapters import AdapterChanges
from hf_triton.ports.openai.app import OpenAiApp
from hf_triton.ports.openai.connections import Connection
from hf_triton.ports.openai.media_hosts import MediaHosts
from hf_triton.ports.openai.playground.routes import Playground
from hf_triton.ports.openai.responses.kept import KeptResponses
from hf_triton.ports.openai.triton.catalog import Catalog, Repository
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.port import Listener, Port, Shared, tls_context
from hf_triton.ports.settings import OpenAiPort

_ABORT_S = 1.0  # for handlers that have not ended in time


@contextlib.asynccontextmanager
async def openai_listener(settings: OpenAiPort, shared: Shared) -> AsyncIterator[Listener]:
    """The port's listener. Raises ServerError where a Triton that is elsewhere can't be reached."""
    access = replace(shared.access, cors=(*shared.access.cors, *settings.cors))
    callers = shared.callers.and_also(settings.caller) if settings.caller else shared.callers
    port = Port(dataclasses.replace(shared, access=access, callers=callers))
    triton = Triton(settings.triton_address, port.retries)
    media_hosts = MediaHosts(settings.media_hosts)
    try:
        if settings.repository is None:  # whoever started this looks after the other one
            await _check(triton)
        repository = Repository(settings.repository)
        catalog = Catalog(triton, port.retries, repository)
        playground = Playground(triton, port.retries, repository)
        app = OpenAiApp(
            triton,
            port,
            catalog,
            media_hosts,
            AdapterChanges(catalog, repository.folder, shared.admin_key, port.retries.is_coming),
            KeptResponses(settings.keep_s),
            playground if settings.has_playground else None,
            metrics_socket=settings.metrics_socket,
        )
        runner = web.AppRunner(
            app.application(), handler_cancellation=True, shutdown_timeout=_ABORT_S
        )
        await runner.setup()
        try:
            new = functools.partial(Connection, runner.server, port)
            tls = tls_context(port.access.tls)
            yield Listener(port, new, settings.port, "--openai-port", tls)
        finally:
            await runner.cleanup()
    finally:
        await media_hosts.close()
        await triton.close()


async def _check(triton: Triton) -> None:
    if reason := await triton.why_unreachable():
        if "HTTP" in reason.upper() or "protocol" in reason.lower():
            reason += "; is it Triton's gRPC port, by default 8001?"
        raise ServerError(f"no Triton answers at {triton.address}: {reason}")

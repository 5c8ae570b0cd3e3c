"""The translator as a running program: starts to listen, says so, and stops gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from aiohttp import web

from generator.errors import ServerError, TemplateError
from generator.render import model_config
from generator.render.digest import CONFIG_FILE
from generator.repository import served_record
from hf_triton.ports.openai.adapters.changes import AdapterChanges
from hf_triton.ports.openai.adapters.files import adapters_now
from hf_triton.ports.openai.app import OpenAiApp
from hf_triton.ports.openai.connections import (
    ACCEPTED_AT_ONCE,
    most_connections,
    protocol,
)
from hf_triton.ports.openai.media_hosts import MediaHosts
from hf_triton.ports.openai.playground.models import Models as PlaygroundModels
from hf_triton.ports.openai.playground.routes import Playground
from hf_triton.ports.openai.responses.kept import KeptResponses
from hf_triton.ports.openai.settings import Settings
from hf_triton.ports.openai.triton.catalog import Catalog
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.repeats import Repeats
from hf_triton.ports.tls import tls_context
from hf_triton.tritonserver.listen import listening_socket

# As long as Triton itself waits for what is in flight.
GRACE_S = 30.0
_BACKLOG = 1024
_LATE_CONNECTIONS_S = 0.1


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    repeats: Repeats | None = None,
) -> None:
    """Serves until ``stop``; then accepts nothing more and lets what is in flight end.

    Raises ServerError where Triton can't be reached or the port can't be listened on.
    """
    repeats = repeats or Repeats()
    triton = Triton(settings.triton_address, settings.abandoned_requests, repeats)
    media_hosts = MediaHosts(settings.media_hosts)
    try:
        if settings.repository is None:  # whoever started this looks after the other one
            await _check(triton)
        configs = _Configs(settings.repository)

        def asleep() -> list[Any]:
            return configs.of(repeats.asleep())

        catalog = Catalog(
            *(triton, lambda: _to_be_served(settings.repository), repeats.not_ready),
            adapters_now=functools.partial(adapters_now, settings.repository),
            coming=lambda: configs.of(repeats.coming()),
            may_come_back=lambda: repeats.may_come_back,
            change=repeats.change,
        )
        shown = PlaygroundModels(triton, repeats.not_ready, settings.repository, asleep)
        app = OpenAiApp(
            *(triton, settings.access, catalog, media_hosts, repeats),
            metrics_socket=settings.metrics_socket,
            playground=Playground(triton, shown) if settings.has_playground else None,
            kept=KeptResponses(settings.keep_s),
            adapters=AdapterChanges(
                catalog, settings.repository, settings.admin_key, repeats.is_coming
            ),
        )
        runner = web.AppRunner(
            app.application(), handler_cancellation=True, shutdown_timeout=GRACE_S
        )
        tls = tls_context(settings.access.tls)
        listening = listening_socket(settings.host, settings.port, "--openai-port")
        await runner.setup()
        new = protocol(runner.server, most_connections())
        loop = asyncio.get_running_loop()
        server = await loop.create_server(new, sock=listening, backlog=ACCEPTED_AT_ONCE, ssl=tls)
        listening.listen(_BACKLOG)
        try:
            on_ready()
            await stop.wait()
            repeats.begin_stop()
            await _accept_no_more(listening)
        finally:
            server.close()
            await runner.cleanup()
            listening.close()
    finally:
        await media_hosts.close()
        await triton.close()


def _to_be_served(repository: Path | None) -> Collection[str] | None:
    record = served_record.read(repository) if repository else None
    return record.models if record else None


class _Configs:
    """The ModelConfigs of Triton's models, as far as their files can be read: each is parsed once,
    and when its file has changed.
    """

    def __init__(self, repository: Path | None) -> None:
        self._repository = repository
        self._parsed: dict[str, tuple[int, Any]] = {}  # with the file's time, in ns

    def of(self, folders: Collection[str]) -> list[Any]:
        found = []
        for folder in folders if self._repository else ():
            with contextlib.suppress(OSError, UnicodeDecodeError, TemplateError):
                found.append(self._of(folder, Path(self._repository or "", folder, CONFIG_FILE)))
        return found

    def _of(self, folder: str, file: Path) -> Any:
        changed_at = file.stat().st_mtime_ns
        known = self._parsed.get(folder)
        if known is None or known[0] != changed_at:
            parsed = model_config.parse(file.read_text(encoding="utf-8"))
            known = self._parsed[folder] = changed_at, parsed
        return known[1]


async def _accept_no_more(listening: socket.socket) -> None:
    """Leaves those who come from now on to the kernel, which resets them when the port closes.

    A connection that is accepted while asyncio closes its server is forgotten, neither answered nor
    closed (3.11: Server._attach fails); and aiohttp leaves one without a request hanging until the
    last other one has ended. So those accepted already have a moment to be answered.
    """
    asyncio.get_running_loop().remove_reader(listening)
    await asyncio.sleep(_LATE_CONNECTIONS_S)


async def _check(triton: Triton) -> None:
    reason = await triton.why_unreachable()
    if reason is None:
        return
    if "HTTP" in reason.upper() or "protocol" in reason.lower():
        reason += "; is it Triton's gRPC port, by default 8001?"
    raise ServerError(f"no Triton answers at {triton.address}: {reason}")

"""OpenAI's port, from its start to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from generator.errors import ServerError, TemplateError
from generator.render import model_config
from generator.render.manifest import CONFIG_FILE
from generator.repository import served_record
from hf_triton.ports.openai.adapters.changes import AdapterChanges
from hf_triton.ports.openai.adapters.files import adapters_now
from hf_triton.ports.openai.app import OpenAiApp
from hf_triton.ports.openai.connections import Connection
from hf_triton.ports.openai.media_hosts import MediaHosts
from hf_triton.ports.openai.playground.models import Models as PlaygroundModels
from hf_triton.ports.openai.playground.routes import Playground
from hf_triton.ports.openai.responses.kept import KeptResponses
from hf_triton.ports.openai.triton.catalog import Catalog
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.port import Door, Port, Shared
from hf_triton.ports.settings import OpenAiPort
from hf_triton.ports.tls import tls_context

_ABORT_S = 1.0  # for handlers that have not ended in time


@contextlib.asynccontextmanager
async def openai_door(
    settings: OpenAiPort, shared: Shared, abandoned_requests: str
) -> AsyncIterator[Door]:
    """What answers behind the port while the block runs. Raises ServerError where a Triton that is
    elsewhere can't be reached.
    """
    port = Port(_of_this_port(settings, shared))
    triton = Triton(settings.triton_address, abandoned_requests, port.repeats)
    media_hosts = MediaHosts(settings.media_hosts)
    try:
        if settings.repository is None:  # whoever started this looks after the other one
            await _check(triton)
        app = _app(settings, port, triton, media_hosts, shared.admin_key)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_ABORT_S)
        await runner.setup()
        try:
            new = functools.partial(Connection, runner.server, port)
            tls = tls_context(port.access.tls)
            yield Door(port, new, settings.port, "--openai-port", tls)
        finally:
            await runner.cleanup()
    finally:
        await media_hosts.close()
        await triton.close()


def _of_this_port(settings: OpenAiPort, shared: Shared) -> Shared:
    """What is shared, and those who may ask this port alone."""
    access = replace(shared.access, cors=(*shared.access.cors, *settings.cors))
    callers = shared.callers.and_also(settings.caller) if settings.caller else shared.callers
    return dataclasses.replace(shared, access=access, callers=callers)


def _app(
    settings: OpenAiPort, port: Port, triton: Triton, media_hosts: MediaHosts, admin_key: str
) -> web.Application:
    repeats, repository = port.repeats, settings.repository
    configs = _Configs(repository)
    catalog = Catalog(
        triton,
        lambda: _to_be_served(repository),
        repeats.not_ready,
        adapters_now=functools.partial(adapters_now, repository),
        coming=lambda: configs.of(repeats.coming()),
        may_come_back=lambda: repeats.may_come_back,
        change=repeats.change,
    )
    shown = PlaygroundModels(
        triton, repeats.not_ready, repository, lambda: configs.of(repeats.asleep())
    )
    return OpenAiApp(
        triton,
        port,
        catalog,
        media_hosts,
        metrics_socket=settings.metrics_socket,
        playground=Playground(triton, shown) if settings.has_playground else None,
        kept=KeptResponses(settings.keep_s),
        adapters=AdapterChanges(catalog, repository, admin_key, repeats.is_coming),
    ).application()


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


async def _check(triton: Triton) -> None:
    reason = await triton.why_unreachable()
    if reason is None:
        return
    if "HTTP" in reason.upper() or "protocol" in reason.lower():
        reason += "; is it Triton's gRPC port, by default 8001?"
    raise ServerError(f"no Triton answers at {triton.address}: {reason}")

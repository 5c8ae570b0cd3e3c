"""The translator as a running program: starts to listen, says so, and stops gracefully."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from generator.errors import ServerError
from generator.openai_api.app import OpenAiApp
from generator.openai_api.triton import Triton

# As long as Triton itself waits for what is in flight.
GRACE_S = 30.0
_BACKLOG = 1024
# aiohttp would log broken request lines as they came; what our handlers fail at they tell themselves.
_SILENT = logging.getLogger("hf_triton.openai_api")
_SILENT.setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class Settings:
    """Where to listen, and the gRPC ``host:port`` of Triton."""

    host: str
    port: int
    triton_address: str
    key: str | None = None


async def serve(settings: Settings, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
    """Serves until ``stop``; then accepts nothing more and lets what is in flight end.

    Raises ServerError where Triton can't be reached or the port can't be listened on.
    """
    triton = Triton(settings.triton_address)
    try:
        await _check(triton)
        app = OpenAiApp(triton, settings.key).application()
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=_SILENT,
            handler_cancellation=True,
            shutdown_timeout=GRACE_S,
        )
        await runner.setup()
        try:
            await _listen(runner, settings)
            on_ready()
            await stop.wait()
        finally:
            await runner.cleanup()
    finally:
        await triton.close()


async def _check(triton: Triton) -> None:
    reason = await triton.why_unreachable()
    if reason is None:
        return
    if "HTTP" in reason.upper() or "protocol" in reason.lower():
        reason += "; is it Triton's gRPC port, by default 8001?"
    raise ServerError(f"no Triton answers at {triton.address}: {reason}")


async def _listen(runner: web.AppRunner, settings: Settings) -> None:
    site = web.TCPSite(runner, settings.host, settings.port, backlog=_BACKLOG)
    try:
        await site.start()
    except socket.gaierror:
        raise ServerError(f"'{settings.host}' is not an address; see --host") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            what = f"port {settings.port} is in use; choose another with --openai-port"
            raise ServerError(what) from None
        what = f"can't listen on port {settings.port} of '{settings.host}' ({error.strerror})"
        raise ServerError(f"{what}; see --openai-port") from None

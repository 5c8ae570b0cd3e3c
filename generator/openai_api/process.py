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
from generator.openai_api.triton.client import Triton

# As long as Triton itself waits for what is in flight.
GRACE_S = 30.0
_BACKLOG = 1024
_LATE_CONNECTIONS_S = 0.1
# aiohttp would log broken request lines as they came; what our handlers fail at, they tell.
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
        listening = _bind(settings)
        await runner.setup()
        try:
            await web.SockSite(runner, listening, backlog=_BACKLOG).start()
            on_ready()
            await stop.wait()
            await _accept_no_more(listening)
        finally:
            await runner.cleanup()
            listening.close()
    finally:
        await triton.close()


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


def _bind(settings: Settings) -> socket.socket:
    """A socket on the port. Raises ServerError that names the flag to change."""
    host, port = settings.host, settings.port
    try:
        [(family, kind, _, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )
        listening = socket.socket(family, kind)
    except (socket.gaierror, UnicodeError):
        raise ServerError(f"'{host}' is not an address; see --host") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            what = f"port {port} is in use; choose another with --openai-port"
            raise ServerError(what) from None
        what = f"can't listen on port {port} of '{host}' ({error.strerror}); see --openai-port"
        raise ServerError(what) from None
    return listening

"""Accepts the connections of a public port."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from hf_triton.tritonserver.listen import listening_socket

_BACKLOG = 1024
_HANDSHAKE_S = 10.0


async def accept(
    new: Callable[[], asyncio.Protocol], host: str, port: int, flag: str, tls: ssl.SSLContext | None
) -> asyncio.AbstractServer:
    """Makes a ``new`` protocol for each client of the port, whose ``flag`` is in errors.

    Raises ServerError where the port can't be listened on.
    """
    return await asyncio.get_running_loop().create_server(
        new,
        sock=listening_socket(host, port, flag),
        backlog=_BACKLOG,
        ssl=tls,
        ssl_handshake_timeout=_HANDSHAKE_S if tls else None,
    )

"""A client's connection to OpenAI's port: how long it may do nothing; and the bodies that come over
it, bounded in size and time, and all together in memory. Knows no paths.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from email.message import Message
from email.parser import BytesHeaderParser
from typing import cast

from aiohttp import web

from hf_triton.ports.bodies import Bodies, Buffered
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.port import BODY_S, HEAD_S, IDLE_S, LINGER_S, PIECE_S, UNREAD_S, Port
from hf_triton.ports.time_limit import timeout

# aiohttp would log broken request lines as they came; what our handlers fail at, they tell.
_SILENT = logging.getLogger("hf_triton.openai_api")
_SILENT.setLevel(logging.CRITICAL + 1)

MAX_FIELDS = 32
_MOST_HEAD_BYTES = 4096  # of one field
_LONGEST_BOUNDARY = 70
_END = b"\r\n"
_HEADS = BytesHeaderParser()


class Connection(web.RequestHandler):
    """Decompresses no body, which could be a thousand times as large as what was sent."""

    __slots__ = ("_is_between", "_port", "deadline", "is_idle")

    def __init__(self, server: web.Server | None, port: Port) -> None:
        super().__init__(
            cast(web.Server, server),
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            logger=_SILENT,
            keepalive_timeout=IDLE_S,
            lingering_time=LINGER_S,
            auto_decompress=False,
        )
        self._port = port
        self._is_between = False  # requests
        self.is_idle, self.deadline = True, port.now() + HEAD_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._port.connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._port.connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_between and data:
            self._is_between, self.deadline = False, self._port.now() + HEAD_S
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.deadline = self._port.now() + UNREAD_S

    def resume_writing(self) -> None:
        super().resume_writing()
        self.deadline = self._port.now() + IDLE_S if self._is_between else math.inf

    def begin(self, *, has_body: bool) -> None:
        self._is_between, self.is_idle = False, has_body
        self.deadline = self._port.now() + BODY_S + PIECE_S if has_body else math.inf

    def compute(self) -> None:
        self.is_idle, self.deadline = False, math.inf

    def end(self) -> None:
        """A request is answered, though its body may not have been read to the end."""
        self._is_between = self.is_idle = True
        self.deadline = self._port.now() + IDLE_S

    # Called by the port.

    def time_out(self, now: float) -> None:
        if now > self.deadline:
            self.abort()

    def stop(self) -> None:
        if self._request_in_progress or self._messages:
            self.close()
        else:
            self.force_close()

    def abort(self) -> None:
        transport = self.transport
        self.force_close()
        if transport:
            transport.abort()


@web.middleware
async def followed(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Tells the connection how far a request has got."""
    connection = cast(Connection, request.protocol)
    connection.begin(has_body=request.can_read_body)
    try:
        return await handler(request)
    finally:
        connection.end()


def form_fields(content_type: str, data: bytes) -> dict[str, list[bytes]]:
    """The values of each field by its name. Raises ApiError, 400."""
    head = Message()
    head["Content-Type"] = content_type
    boundary = head.get_boundary("")
    if not 1 <= len(boundary) <= _LONGEST_BOUNDARY or not boundary.isascii():
        raise _no_form()
    begins = _END + b"--" + boundary.encode()
    _, *parts = (_END + data).split(begins, MAX_FIELDS + 1)
    fields: dict[str, list[bytes]] = {}
    for number, part in enumerate(parts):
        if part.startswith(b"--"):
            return fields
        if number == MAX_FIELDS:
            raise ApiError(400, f"the body: got more fields, allowed: at most {MAX_FIELDS}")
        name, value = _field(part)
        fields.setdefault(name, []).append(value)
    raise _no_form()


def _field(part: bytes) -> tuple[str, bytes]:
    line, _, rest = part.partition(_END)
    head, ends, value = rest.partition(_END + _END)
    if line.strip() or not ends or len(head) > _MOST_HEAD_BYTES:
        raise _no_form()
    name = _HEADS.parsebytes(head).get_param("name", header="Content-Disposition")
    if not isinstance(name, str):
        raise _no_form()
    return name, value


def _no_form() -> ApiError:
    return ApiError(400, "the body is not the multipart form that its Content-Type announces")


def check_encoding(request: web.Request) -> None:
    encodings = ",".join(request.headers.getall("Content-Encoding", ["identity"]))
    if encodings.strip().lower() not in ("", "identity"):
        message = "Content-Encoding: the body is encoded, allowed: identity (send it as it is)"
        raise ApiError(415, message)


async def read_body(request: web.Request, bodies: Bodies) -> bytes:
    """The whole body. Raises RefusedError, ApiError."""
    bodies.check_length(request.content_length or 0)
    data, buffered = bytearray(), Buffered(bodies)
    try:
        async with timeout(BODY_S):
            while piece := await _next_piece(request):
                buffered.take(len(piece))
                data += piece
        cast(Connection, request.protocol).compute()
        return bytes(data)
    except asyncio.TimeoutError:
        raise ApiError(408, "the body did not come in time") from None
    except (web.RequestPayloadError, ConnectionError):
        raise ApiError(400, "the body is not what its headers say") from None
    finally:
        buffered.free()


async def _next_piece(request: web.Request) -> bytes:
    async with timeout(PIECE_S):
        return await request.content.readany()


async def read_form(request: web.Request, bodies: Bodies) -> dict[str, list[bytes]]:
    if request.content_type != "multipart/form-data":
        raise ApiError(415, "Content-Type: got another, allowed: multipart/form-data")
    data = await read_body(request, bodies)
    return form_fields(request.headers["Content-Type"], data)

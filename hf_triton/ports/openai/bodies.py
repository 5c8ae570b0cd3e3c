"""Reads requests' bodies: bounded in size and time, and all together in memory."""

from __future__ import annotations

import asyncio

from aiohttp import web

from hf_triton.ports.bodies import Bodies
from hf_triton.ports.openai.connections import connection_of
from hf_triton.ports.openai.form import form_fields
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.port import BODY_S, PIECE_S
from hf_triton.ports.time_limit import timeout


def check_encoding(request: web.Request) -> None:
    """Raises ApiError for a body that is not sent as it is."""
    encodings = ",".join(request.headers.getall("Content-Encoding", ["identity"]))
    if encodings.strip().lower() not in ("", "identity"):
        message = "Content-Encoding: the body is encoded, allowed: identity (send it as it is)"
        raise ApiError(415, message)


async def read_body(request: web.Request, bodies: Bodies) -> bytes:
    """The whole body. Raises RefusedError for one that is too large, ApiError for one that is too
    late, or broken.
    """
    bodies.check_length(request.content_length or 0)
    data = bytearray()
    try:
        async with timeout(BODY_S):
            while piece := await _next_piece(request):
                bodies.take(len(piece), len(data) + len(piece))
                data += piece
        connection_of(request).compute()
        return bytes(data)
    except asyncio.TimeoutError:
        raise ApiError(408, "the body did not come in time") from None
    except (web.RequestPayloadError, ConnectionError):
        raise ApiError(400, "the body is not what its headers say") from None
    finally:
        bodies.num_bytes -= len(data)


async def _next_piece(request: web.Request) -> bytes:
    async with timeout(PIECE_S):
        return await request.content.readany()


async def read_form(request: web.Request, bodies: Bodies) -> dict[str, list[bytes]]:
    """The fields of a multipart form by name. Raises RefusedError, ApiError."""
    if request.content_type != "multipart/form-data":
        raise ApiError(415, "Content-Type: got another, allowed: multipart/form-data")
    data = await read_body(request, bodies)
    return form_fields(request.headers["Content-Type"], data)

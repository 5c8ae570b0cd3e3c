"""Reads requests' bodies: bounded in size and time, and all together in memory."""

from __future__ import annotations

import asyncio

from aiohttp import StreamReader, web

from hf_triton.ports.openai.form import form_fields
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.settings import MIB
from hf_triton.ports.time_limit import timeout

_TIMEOUT_S = 60.0
# Small ones are always read; of the others, so much at once, but two of the largest at least.
_SMALL_BYTES = 64 * 2**10
_ALL_MIB = 256


def check_encoding(request: web.Request) -> None:
    """Raises ApiError for a body that is not sent as it is."""
    encodings = ",".join(request.headers.getall("Content-Encoding", ["identity"]))
    if encodings.strip().lower() not in ("", "identity"):
        message = "Content-Encoding: the body is encoded, allowed: identity (send it as it is)"
        raise ApiError(415, message)


class Bodies:
    """Those that are being read, each of ``max_mib`` at most."""

    def __init__(self, max_mib: int) -> None:
        self._max_mib, self._max_bytes = max_mib, max_mib * MIB
        self._max_all_bytes = max(_ALL_MIB, 2 * max_mib) * MIB
        self._num_bytes = 0  # of the large ones

    async def read(self, request: web.Request) -> bytes:
        """The whole body. Raises ApiError for one that is too large, too late, or broken."""
        if (request.content_length or 0) > self._max_bytes:
            raise self._too_large(f"{request.content_length} bytes")
        try:
            async with timeout(_TIMEOUT_S):
                return await self._read(request.content)
        except asyncio.TimeoutError:
            text = f"the body did not come within {_TIMEOUT_S:g} seconds"
            raise ApiError(408, text) from None
        except (web.RequestPayloadError, ConnectionError):
            raise ApiError(400, "the body is not what its headers say") from None

    async def read_form(self, request: web.Request) -> dict[str, list[bytes]]:
        """The fields of a multipart form by name. Raises ApiError."""
        if request.content_type != "multipart/form-data":
            raise ApiError(415, "Content-Type: got another, allowed: multipart/form-data")
        data = await self.read(request)
        return form_fields(request.headers["Content-Type"], data)

    async def _read(self, content: StreamReader) -> bytes:
        data, counted = bytearray(), 0
        try:
            while chunk := await content.readany():
                data += chunk
                if len(data) > self._max_bytes:
                    raise self._too_large("more")
                if len(data) > _SMALL_BYTES:
                    self._num_bytes += len(data) - counted
                    counted = len(data)
                if counted and self._num_bytes > self._max_all_bytes:
                    text = "too many large bodies are being received; try again"
                    raise ApiError(503, text, code="unavailable")
            return bytes(data)
        finally:
            self._num_bytes -= counted

    def _too_large(self, got: str) -> ApiError:
        allowed = f"{self._max_mib} MiB (max_body_mib in models.yaml's server:)"
        return ApiError(413, f"the body: got {got}, allowed: {allowed}")

"""How answers and errors go over HTTP: as JSON or server-sent events, each in its API's format."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web

from hf_triton.ports.openai.access import id_of
from hf_triton.ports.openai.routes import messages
from hf_triton.ports.openai.routes.answers import Chunks, Writer, to_json
from hf_triton.ports.openai.schema.errors import ApiError, is_hubs, of_refusal
from hf_triton.ports.refusal import RefusedError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would keep chunks back
}


async def streamed(request: web.Request, writer: Writer, chunks: Chunks) -> web.StreamResponse:
    """Sends events as they come; until the first has, an error still gets its own status."""
    async with aclosing(writer.events(chunks)) as found:
        first = await anext(found)
        response = web.StreamResponse(headers=_SSE_HEADERS)
        # The client has gone: nobody is left to tell.
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            await response.write(first)
            try:
                async for event in found:
                    await response.write(event)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001, the status is sent: tell of it in an event
                await response.write(writer.failed(_as_api_error(error, id_of(request))))
            await response.write_eof()
    return response


@web.middleware
async def errors_in_the_apis_format(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        got = f"{request.method} {request.path}"[:200]
        allow = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        hint = f", allowed: {allow['Allow']}" if allow else ", see /v1/models"
        return _error(request, ApiError(error.status, f"{got}: {error.reason}{hint}"), allow)
    except Exception as error:  # noqa: BLE001, the edge of a request
        return _error(request, _as_api_error(error, id_of(request)))


def _as_api_error(error: Exception, request_id: str) -> ApiError:
    """The error itself, or for a bug of ours one that says no more than its type."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RefusedError):
        return of_refusal(error)
    if isinstance(error, RecursionError):
        return ApiError(400, "the body: nested too deeply")
    # Only the place: the text could quote a prompt.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__} at {frame.filename}:{frame.lineno}"
    label = f"[request id: {request_id}]"
    sys.stderr.write(f"hf-triton: {label} the OpenAI API failed at a request: {place}\n")
    return ApiError(500, f"internal error: {type(error).__name__}")


def _error(
    request: web.Request, error: ApiError, headers: dict[str, str] | None = None
) -> web.Response:
    body: Any = error.body()
    status = error.status
    if f"{request.path}/".startswith(f"{messages.PATH}/"):
        body = messages.error_body(error)
        body.request_id = id_of(request)
    elif is_hubs(request.path):
        status, body = error.hubs_status, error.hubs_body()
    return json_response(body, status, {**error.headers(), **(headers or {})})


def json_response(
    value: Any, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=to_json(value), status=status, headers=headers, content_type="application/json"
    )

"""The way of every request through the port: callers' keys and limits and the origins of pages are
checked, ids and traces passed on, and answers and errors sent as JSON or server-sent events, each
in its API's format.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from functools import partial

from aiohttp import web

from hf_triton.ports import cors
from hf_triton.ports.callers import Account, counted
from hf_triton.ports.http.request import WRONG_HOST, is_host
from hf_triton.ports.openai.connections import check_encoding
from hf_triton.ports.openai.routes.answers import Chunks, Writer, to_json
from hf_triton.ports.openai.schema.errors import ApiError, of_refusal
from hf_triton.ports.port import Port
from hf_triton.ports.refusal import RefusedError, refusal_of, report_bug
from hf_triton.ports.triton_calls import Metadata
from hf_triton.runtime.request.request_parameters import CALLER

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
json_response = partial(web.json_bytes_response, dumps=to_json)

_SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would keep chunks back
}
HEADER = "X-Request-Id"
_ANTHROPICS = "request-id"  # where Anthropic's packages look
_KEY = web.RequestKey("hf_triton_request_id", str)
# One word that can stand in a log line and in a label; any other is as if none had been sent.
_WORD = re.compile(r"[!#-Z^-~]{1,128}")
_NAMES = ("traceparent", "tracestate")
_VALUE = re.compile(r"[ -~]{1,512}")
ACCOUNT = web.RequestKey("hf_triton_account", Account)
# Paths without information about models or callers.
_OPEN_PATHS = ("/", "/health", "/ping", "/openapi.json")


def id_of(request: web.Request, own: str = "") -> str:
    """The id that the client sent, else ``own``, else a new one."""
    if _KEY not in request:
        given = request.headers.get(HEADER, "")
        is_word = _WORD.fullmatch(given) is not None
        request[_KEY] = given if is_word else own or f"req-{uuid.uuid4().hex}"
    return request[_KEY]


def trace_context(request: web.Request) -> Metadata:
    """The W3C trace headers as gRPC metadata; malformed ones are left out."""
    given = ((name, request.headers.get(name, "")) for name in _NAMES)
    return tuple((name, value) for name, value in given if _VALUE.fullmatch(value))


class AccessCheck:
    def __init__(self, port: Port, pages: Collection[str] = ()) -> None:
        self._access, self._callers = port.access, port.callers
        self._open_paths = frozenset((*_OPEN_PATHS, *pages))

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Checks a request's head before anything of its body is read, and counts it to its caller.
        aiohttp refuses two Host headers. Raises RefusedError (401, 429), ApiError.
        """
        host = request.headers.get("Host", "")
        if not is_host(host.encode(errors="surrogateescape")) or request.url.user:
            raise ApiError(400, f"Host: {WRONG_HOST}")
        if request.method == "OPTIONS" and cors.allows(self._access, request.headers.get("Origin")):
            wanted = request.headers.get("Access-Control-Request-Headers")
            return web.Response(status=204, headers=cors.preflight(wanted))
        account = self._account(request)
        if account:
            request[ACCOUNT] = account
        with counted(account):
            check_encoding(request)
            return await handler(request)

    def _account(self, request: web.Request) -> Account | None:
        if request.method in ("GET", "HEAD") and request.path in self._open_paths:
            return None
        # Anthropic's header is read as one of OpenAI's.
        keys = [f"Bearer {key}" for key in request.headers.getall("x-api-key", [])]
        keys = [*request.headers.getall("Authorization", []), *keys]
        headers = list(dict.fromkeys(keys))
        if len(headers) > 1 and self._callers.have_keys:
            # A gateway before this port may have checked another one.
            text = "Authorization, x-api-key: got two different ones, allowed: one, or both alike"
            raise ApiError(400, text)
        given = headers[0].encode(errors="surrogateescape") if headers else None
        return self._callers.of(given, request.remote or "")

    async def send_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Sends the request's id, and the headers for pages of other origins and of limits."""
        response.headers.update(dict.fromkeys((HEADER, _ANTHROPICS), id_of(request)))
        response.headers.update(cors.headers(self._access, request.headers.get("Origin")))
        if account := request.get(ACCOUNT):
            response.headers.update(account.headers())
        if "Transfer-Encoding" in request.headers:
            # aiohttp 3.14 takes what comes behind the last chunk for headers of the connection's
            # next request.
            response.headers["Connection"] = "close"
            response.force_close()


def caller_of(request: web.Request) -> dict[str, str]:
    """The request parameter that names the caller to a model; none where no caller has a key."""
    account = request.get(ACCOUNT)
    return {CALLER: account.alias} if account and account.alias else {}


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
        text = f"{got}: {error.reason}{hint}"
        return _error(request, ApiError(error.status, text, more_headers=allow))
    except Exception as error:  # noqa: BLE001, the edge of a request
        return _error(request, _as_api_error(error, id_of(request)))


def _as_api_error(error: Exception, request_id: str) -> ApiError:
    """The error itself, or for a bug of ours one that says no more than its type."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecursionError):
        return ApiError(400, "the body: nested too deeply")
    if not isinstance(error, RefusedError):
        label = f"[request id: {request_id}]"
        report_bug(f"{label} the OpenAI API failed at a request", error)
    return of_refusal(refusal_of(error))


def _error(request: web.Request, error: ApiError) -> web.Response:
    status, body = error.at(request.path, id_of(request))
    return json_response(body, status=status, headers=error.headers())

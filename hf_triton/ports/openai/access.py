"""Who may use this API: keys and limits by caller, and pages of other origins."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Collection

from aiohttp import web

from hf_triton.ports import cors
from hf_triton.ports.callers import Account, leave_after
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.triton.client import Metadata
from hf_triton.ports.port import Port
from hf_triton.runtime.request.request_parameters import CALLER

HEADER = "X-Request-Id"
_ANTHROPICS = "request-id"  # where Anthropic's packages look
_KEY = web.RequestKey("hf_triton_request_id", str)
# One word that can stand in a log line and in a label; any other is as if none had been sent.
_WORD = re.compile(r"[!#-Z^-~]{1,128}")
_NAMES = ("traceparent", "tracestate")
_VALUE = re.compile(r"[ -~]{1,512}")


def id_of(request: web.Request, own: str = "") -> str:
    """The id that the client sent, else ``own``, else a new one."""
    if _KEY not in request:
        given = request.headers.get(HEADER, "")
        is_word = _WORD.fullmatch(given) is not None
        request[_KEY] = given if is_word else own or f"req-{uuid.uuid4().hex}"
    return request[_KEY]


async def send_id(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(dict.fromkeys((HEADER, _ANTHROPICS), id_of(request)))


def trace_context(request: web.Request) -> Metadata:
    """The W3C trace headers as gRPC metadata; malformed ones are left out."""
    given = ((name, request.headers.get(name, "")) for name in _NAMES)
    return tuple((name, value) for name, value in given if _VALUE.fullmatch(value))


_ACCOUNT = web.RequestKey("hf_triton_account", Account)
# What tells nothing of models or callers.
_OPEN_PATHS = ("/", "/health", "/ping", "/openapi.json", "/docs")


class AccessCheck:
    """``enter`` comes before anything of a body is read, ``leave`` at the end."""

    def __init__(self, port: Port, pages: Collection[str] = ()) -> None:
        self._access, self._callers = port.access, port.callers
        self._open_paths = frozenset((*_OPEN_PATHS, *pages))

    def enter(self, request: web.Request) -> None:
        """Counts the request to its caller. Raises RefusedError (401, 429), ApiError."""
        if request.method in ("GET", "HEAD") and request.path in self._open_paths:
            return
        # Anthropic's header is read as one of OpenAI's.
        keys = [f"Bearer {key}" for key in request.headers.getall("x-api-key", [])]
        keys = [*request.headers.getall("Authorization", []), *keys]
        headers = list(dict.fromkeys(keys))
        if len(headers) > 1 and self._callers.have_keys:
            # Whoever stands before this port may have looked at another one.
            text = "Authorization, x-api-key: got two different ones, allowed: one, or both alike"
            raise ApiError(400, text)
        given = headers[0].encode(errors="surrogateescape") if headers else None
        account = self._callers.of(given, request.remote or "")
        self._callers.enter(account)
        if account:
            request[_ACCOUNT] = account

    def leave(self, request: web.Request, left: Collection[asyncio.Task[None]]) -> None:
        leave_after(request.get(_ACCOUNT), left)

    def preflight(self, request: web.Request) -> web.Response | None:
        """Answers a browser's CORS preflight; None for any other request."""
        wanted = request.headers.get("Access-Control-Request-Headers")
        may = cors.allows(self._access, request.headers.get("Origin"))
        if request.method != "OPTIONS" or not may:
            return None
        return web.Response(status=204, headers=cors.preflight(wanted))

    async def send_cors(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(cors.headers(self._access, request.headers.get("Origin")))


def caller_of(request: web.Request) -> dict[str, str]:
    """The request parameter that names the caller to a model; none where no caller has a key."""
    account = request.get(_ACCOUNT)
    return {CALLER: account.alias} if account and account.alias else {}

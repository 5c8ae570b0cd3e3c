"""What the port tells of the server and of itself: health, version, metrics, its schema."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Literal

from aiohttp import web
from msgspec import Struct

from hf_triton.ports.http.upstream import Pool, Question
from hf_triton.ports.openai.openapi_schema.document import TEXT, Operation, Route, document
from hf_triton.ports.openai.openapi_schema.page import page
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.sending import json_response
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.time_limit import timeout
from hf_triton.ports.triton_channel import QUESTION_TIMEOUT_S

_HTML = "text/html"
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_PAGE_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}


class Health(Struct):
    """Whether Triton answers."""

    status: Literal["ok"] = "ok"


class Version(Struct):
    """Of hf-triton."""

    version: str


class Document(Struct):
    """OpenAPI's."""

    openapi: str
    paths: dict[str, Any]


class About:
    """The handlers; ``metrics_socket`` is the Unix socket of Triton's metrics, "" where there is
    none.
    """

    def __init__(self, triton: Triton, metrics_socket: str) -> None:
        self._triton = triton
        self._metrics_socket = metrics_socket

    def routes(self) -> list[Route]:
        """Those that need nothing of the others."""
        healthy = Operation("Whether Triton answers", Health)
        return [
            Route("/", self._health, healthy),  # HEAD too: Claude Code looks whether it is there
            Route("/health", self._health, healthy),
            Route("/ping", self._health, healthy),
            Route("/version", _version, Operation("hf-triton's version", Version)),
            Route("/metrics", self._metrics, Operation("Triton's and the models'", also=(TEXT,))),
        ]

    async def _health(self, _request: web.Request) -> web.Response:
        if await self._triton.why_unreachable():
            raise ApiError(503, "no connection to Triton", code="unavailable")
        return json_response(Health())

    async def _metrics(self, _request: web.Request) -> web.Response:
        """Prometheus' text, as Triton's metrics port has it."""
        if not self._metrics_socket:
            raise ApiError(404, "metrics: Triton is elsewhere; ask its own metrics port")
        pool = Pool(self._metrics_socket)
        try:
            async with timeout(QUESTION_TIMEOUT_S):
                status, text = await Question(pool).get("/metrics")
            return web.Response(text=text.decode(), status=status)
        except (OSError, asyncio.TimeoutError):
            raise ApiError(503, "no metrics of Triton; try again", code="unavailable") from None
        finally:
            pool.close()


def with_schema(routes: Sequence[Route]) -> list[Route]:
    """The routes, and those that describe all of them."""

    @functools.cache
    def described() -> dict[str, Any]:
        return document(every)

    async def schema(_request: web.Request) -> web.Response:
        # The first takes 0.3 s, which neither the start of the port nor another request waits for.
        return json_response(await asyncio.to_thread(described), headers=_PAGE_HEADERS)

    async def docs(_request: web.Request) -> web.Response:
        text = page(await asyncio.to_thread(described))
        return web.Response(text=text, content_type=_HTML, headers=_PAGE_HEADERS)

    every = [
        *routes,
        Route("/openapi.json", schema, Operation("This port's OpenAPI schema", Document)),
        Route("/docs", docs, Operation("The same as a page", also=(_HTML,))),
    ]
    return every


async def _version(_request: web.Request) -> web.Response:
    return json_response(Version(version("hf-triton")))

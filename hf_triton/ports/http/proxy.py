"""The public HTTP and metrics ports: what stands between their clients and tritonserver."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from hf_triton.ports import cors
from hf_triton.ports.bodies import ENCODINGS, expanded
from hf_triton.ports.call_files import first_text
from hf_triton.ports.callers import CallName
from hf_triton.ports.http.json_bodies import (
    checked_generate,
    checked_index,
    checked_infer,
    checked_object,
)
from hf_triton.ports.http.request import ADMIN_HEADER, Request
from hf_triton.ports.http.upstream import Pool, Upstream, read_left
from hf_triton.ports.port import Port, Shared
from hf_triton.ports.refusal import HTTP_ADMIN_HEADER, RefusedError
from hf_triton.runtime.request.request_parameters import CALL, CALLER

_OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")
_TOLD_BY_LOADED = ("", "config")  # "" is its metadata
_INDEX_PATH = "/v2/repository/index"
_GENERATE = ("generate", "generate_stream")
_ADMIN_PATH = re.compile(
    r"/v2/(repository/|logging|(models/[^/]+/(versions/[^/]+/)?)?trace/"
    r"|systemsharedmemory/|cudasharedmemory/)"
)

_LARGE_BYTES = 1 << 18  # take a millisecond and more to read


class HttpProxy(Port):
    """One public port, and the connections to it."""

    def __init__(self, shared: Shared, socket_path: str, metrics: Callable[[], str] = str) -> None:
        """``metrics`` are written behind those of the socket."""
        super().__init__(shared)
        self.pool, self.metrics = Pool(socket_path), metrics

    def judge(self, request: Request, address: str) -> None:
        """Judges a request by its head, before its body comes. Raises RefusedError."""
        if request.method == b"OPTIONS":
            if not cors.allows(self.access, request.text_of(b"origin")):
                text = "got OPTIONS, allowed: GET, POST"
                raise RefusedError(405, text, {"Allow": "GET, POST"})
            return
        self.bodies.check_length(request.length)
        if request.path in _OPEN_PATHS and request.method == b"GET":
            return
        request.account = self.callers.of(request.noted.get(b"authorization"), address)
        if _ADMIN_PATH.match(request.path) and request.path != _INDEX_PATH:
            self.check_admin_key(request.noted.get(ADMIN_HEADER, b""), HTTP_ADMIN_HEADER)

    def leave(self, upstream: Upstream, request: Request) -> None:
        """Handles a client that has gone: tells a model of ours, and reads the rest of its answer:
        connections that close meanwhile harm Triton's threads.
        """
        if request.call_name and upstream.is_sent:
            self.run(read_left(upstream, self.retries.abandoned, request.call_name))
        else:
            upstream.abort()

    def choose_model(self, request: Request) -> None:
        """Notes which model is to answer, and how it knows the request."""
        model, endpoint = self.retries.model(request.model), request.endpoint
        if request.method == b"POST" and endpoint in ("infer", *_GENERATE):
            request.awaited_model, request.streams = request.model, endpoint == "generate_stream"
            if model.is_ours:
                request.call_name = CallName()
        elif endpoint in _TOLD_BY_LOADED and model.is_asleep:
            request.awaited_model = request.model

    async def checked(self, request: Request) -> bytes:
        """The request as it goes on to tritonserver, which gets the bytes that were checked. Large
        bodies are read on a thread, so that others need not wait. Raises RefusedError.
        """
        body, request.body = bytes(request.body), bytearray()
        if body and request.encoding in ENCODINGS:
            body = await asyncio.to_thread(expanded, body, self.bodies.max_bytes, "body")
            request.buffered.free()
            request.buffered.take(len(body))
        if len(body) > _LARGE_BYTES:
            return await asyncio.to_thread(self._written, request, body)
        return self._written(request, body)

    def _written(self, request: Request, body: bytes) -> bytes:
        """The request for tritonserver. Raises RefusedError."""
        head_length = request.head_length(len(body))
        alias = request.account.alias if request.account else ""
        told = {CALLER: alias, CALL: first_text(request.call_name, streams=request.streams)}
        own = {name: value for name, value in told.items() if value}
        endpoint = request.endpoint
        if endpoint == "infer" and request.method == b"POST":
            end = len(body) if head_length is None else head_length
            head, classified = checked_infer(body[:end], len(body), **own)
            self.check_classified(request.model, classified)
            body = head + body[end:]
            head_length = None if head_length is None else len(head)
        elif endpoint in _GENERATE and (body or request.method == b"POST"):
            body, head_length = checked_generate(body, **own), None
        elif body:
            head_length = None
            if request.path == _INDEX_PATH:
                body = checked_index(body)
            else:  # others have no body to be read
                body = checked_object(body) if _ADMIN_PATH.match(request.path) else b""
        with_key = not self.callers.have_keys
        return request.bytes_for_triton(body, head_length, with_key)

    def begin_stop(self) -> None:
        self.pool.close()
        super().begin_stop()

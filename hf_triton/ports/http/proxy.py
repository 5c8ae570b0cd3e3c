"""The public HTTP and metrics ports: each request of a client is judged, asked of tritonserver,
again where its model was away, and answered.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import responses
from typing import Any

from hf_triton.ports import cors
from hf_triton.ports.bodies import ENCODINGS, expanded
from hf_triton.ports.call_files import first_text
from hf_triton.ports.callers import CallName, counted
from hf_triton.ports.http.json_bodies import (
    checked_generate,
    checked_index,
    checked_infer,
    checked_object,
    timeout_s_of,
)
from hf_triton.ports.http.request import ADMIN_HEADER, Request
from hf_triton.ports.http.upstream import LostError, Pool, Upstream, read_left
from hf_triton.ports.port import Port, Shared
from hf_triton.ports.refusal import HTTP_ADMIN_HEADER, RefusedError, refusal_of
from hf_triton.ports.retries import DIED, GONE, STARTING, InFlight
from hf_triton.runtime.request.request_parameters import CALL, CALLER
from hf_triton.tritonserver.http_api import error_in

_OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")
_TOLD_BY_LOADED = ("", "config")  # "" is its metadata
_INDEX_PATH = "/v2/repository/index"
_GENERATE = ("generate", "generate_stream")
_ADMIN_PATH = re.compile(
    r"/v2/(repository/|logging|(models/[^/]+/(versions/[^/]+/)?)?trace/"
    r"|systemsharedmemory/|cudasharedmemory/)"
)
_LARGE_BYTES = 1 << 18  # take a millisecond and more to read
_END_OF_HEAD = b"\r\n\r\n"
_END_OF_CHUNK = b"\n\n\r\n"  # and of an event
_ERROR_EVENT = re.compile(rb'[0-9a-f]+\r\ndata: \{"error":(.*)\}\n\n')


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


class Exchange:
    """A request of a client's HttpConnection, and its answer."""

    def __init__(self, connection: Any, proxy: HttpProxy, request: Request) -> None:
        self._connection, self._proxy, self._request = connection, proxy, request
        self._upstream: Upstream | None = None  # over which it is asked
        self._has_begun = False  # whether the client has some of the answer
        self._is_last = request.is_last  # of its connection
        self._task = proxy.run(self._run())

    def abandon(self) -> None:
        """The client has gone: so does its request."""
        self._task.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream:
            self._proxy.leave(upstream, self._request)
        self._request.free()

    async def _run(self) -> None:
        try:
            await self._connection.has_room.wait()
            await self._answer()
        except Exception as error:  # noqa: BLE001, the edge of a request
            self._write_refusal(refusal_of(error))
        finally:
            self._request.free()
        self._connection.end_exchange(is_last=self._closes)

    @property
    def _closes(self) -> bool:
        """True if the connection ends with this request."""
        return self._is_last or self._proxy.is_stopping

    async def _answer(self) -> None:
        request, proxy = self._request, self._proxy
        if request.refusal:
            self._write_refusal(request.refusal)
            return
        if request.method == b"OPTIONS":
            wanted = request.text_of(b"access-control-request-headers")
            self._write_whole(204, b"", cors.preflight(wanted))
            return
        with counted(request.account):
            if request.endpoint == "ready" and proxy.retries.model(request.model).is_asleep:
                self._write_whole(200, b"", {})  # its next request has it loaded
            else:
                await self._ask()

    async def _ask(self) -> None:
        """Sends the request until it is answered. Raises RefusedError."""
        request, proxy = self._request, self._proxy
        proxy.choose_model(request)
        in_flight = InFlight(
            proxy.retries,
            request.awaited_model,
            self._lose_model,
            timeout_s_of,
            request.call_name if request.streams else "",
            await proxy.checked(request),
        )
        try:
            while not await self._ask_once(in_flight):
                pass
        finally:
            in_flight.end()

    async def _ask_once(self, in_flight: InFlight) -> bool:
        """Sends the request. Returns whether it was answered: its model was away otherwise. Raises
        RefusedError.
        """
        request, proxy = self._request, self._proxy
        await in_flight.wait_until_sendable()
        try:
            upstream = self._upstream = await proxy.pool.take()
        except (FileNotFoundError, ConnectionError, BlockingIOError):
            if in_flight.is_retryable(STARTING):
                return False
            raise RefusedError(503, STARTING, {"Retry-After": "1"}) from None
        try:
            await upstream.send(in_flight.payload_for(request.call_name))
            if not (in_flight.model and request.buffered.keep()):
                in_flight.payload = None
                request.free()
            return await self._pass_on(upstream, in_flight)
        except LostError:
            if in_flight.may_be_sent_again:
                in_flight.lost()
                return False
            self._end_lost(upstream)
            return True
        finally:
            if self._upstream is upstream:  # the client is there
                self._upstream = None
                upstream.release()

    def _lose_model(self) -> None:
        if self._upstream:
            self._upstream.abort()

    def _end_lost(self, upstream: Upstream) -> None:
        """Ends an answer that tritonserver did not. Raises RefusedError where that can be told."""
        self._is_last = True
        if not self._has_begun:
            raise RefusedError(503, GONE, {"Retry-After": "1"})
        if upstream.is_between_chunks or not upstream.status:
            raise RefusedError(503, DIED)
        if self._request.version != b"1.0":  # the close ends 1.0's answers
            self._connection.abort()

    async def _pass_on(self, upstream: Upstream, in_flight: InFlight) -> bool:
        """Passes the answer on. Returns False where an error says that the model is away. Raises
        LostError, RefusedError.
        """
        is_again = self._has_begun
        answer = await upstream.read()
        while not upstream.status:
            answer += await upstream.read()
        is_error = upstream.status >= HTTPStatus.BAD_REQUEST
        if is_error and (is_again or in_flight.payload is not None):
            while data := await upstream.read():
                answer += data
            error = answer.partition(_END_OF_HEAD)[2].decode(errors="replace")
            if in_flight.is_retryable(error):
                return False
            if is_again:
                raise RefusedError(503, error_in(error) or DIED)
        if upstream.status == HTTPStatus.OK and (metrics := self._proxy.metrics()):
            while data := await upstream.read():
                answer += data
            body = answer.partition(_END_OF_HEAD)[2] + metrics.encode()
            self._write_whole(200, body, {"Content-Type": "text/plain; charset=utf-8"})
            return True
        # Only a stream that can go on in another process is asked again from here on; whole answers
        # are safe, other streams can be lost still.
        if self._request.streams:
            in_flight.passed_on(0)
        else:
            in_flight.end()
        if in_flight.payload is None:
            self._request.free()
        if is_again:
            answer = answer.partition(_END_OF_HEAD)[2]
        return await self._pass_on_rest(upstream, in_flight, answer)

    async def _pass_on_rest(
        self, upstream: Upstream, in_flight: InFlight, unwritten: bytes
    ) -> bool:
        """Passes on what has come and what comes; of a stream that may go on in another process,
        whole events.
        """
        while True:
            events, unwritten, is_away = unwritten, b"", False
            if in_flight.payload is not None:
                if not upstream.is_between_chunks:
                    whole, end, unwritten = events.rpartition(_END_OF_CHUNK)
                    events = whole + end
                error = _ERROR_EVENT.search(events)
                if error and in_flight.is_retryable(error[1].decode(errors="replace")):
                    events, is_away = events[: error.start()], True
                in_flight.passed_on(events.count(b"\n\n"))
            await self._write(events)
            if is_away:
                return False
            if not (data := await upstream.read()):
                break
            unwritten += data
        await self._write(unwritten)
        self._is_last |= not upstream.keeps_alive
        return True

    # Writing to the client.

    async def _write(self, data: bytes) -> None:
        """Returns once the client has read enough of it."""
        if data and not self._has_begun:
            line, end, rest = data.partition(b"\r\n")
            data = b"".join((line, end, self._own_headers(), rest))
            self._has_begun = True
        self._connection.transport.write(data)
        await self._connection.has_room.wait()

    def _write_refusal(self, refusal: RefusedError) -> None:
        if self._has_begun:  # as events
            self._is_last = True
            event = b"data: %b\n\n" % json.dumps({"error": refusal.text}).encode()
            self._connection.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
            return
        body = json.dumps({"error": refusal.text}).encode()
        headers = {"Content-Type": "application/json", **refusal.headers}
        self._write_whole(refusal.status, body, headers)

    def _write_whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {responses.get(status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if status != HTTPStatus.NO_CONTENT:
            lines.append(f"Content-Length: {len(body)}")
        lines.append(f"Connection: {'close' if self._closes else 'keep-alive'}")
        head = "".join(f"{line}\r\n" for line in lines).encode("latin-1", "replace")
        self._connection.transport.write(b"".join((head, self._own_headers(), b"\r\n", body)))

    def _own_headers(self) -> bytes:
        """The lines that go into each answer: for pages of other origins, and of limits."""
        request = self._request
        found = cors.headers(self._proxy.access, request.text_of(b"origin"))
        found |= request.account.headers() if request.account else {}
        return "".join(f"{name}: {value}\r\n" for name, value in found.items()).encode("latin-1")

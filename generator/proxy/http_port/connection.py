"""One client's HTTP connection: its requests in their order, each checked, passed on, answered."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from http import HTTPStatus
from typing import Any

import httptools

from generator.proxy import cors
from generator.proxy.callers import Account
from generator.proxy.http_port.proxy import HttpProxy
from generator.proxy.http_port.request import MAX_HEAD_BYTES, Request
from generator.proxy.http_port.upstream import Upstream
from generator.proxy.refusal import RefusedError

_MAX_WAITING = 64  # requests that a client sent before the one under way was answered
_HEAD_S, _BODY_S, _WHOLE_BODY_S, _IDLE_S = 10.0, 30.0, 600.0, 300.0
_READ_S = 120.0  # for a client that does not read its answer
_LINGER_S = 5.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_GONE = "tritonserver ended while it had this request"
_STARTING = "tritonserver does not answer: it is being started; try again"


class HttpConnection(asyncio.Protocol):
    """From its start to its end."""

    def __init__(self, proxy: HttpProxy) -> None:
        self._proxy = proxy
        self._transport: Any = None
        self._parser = httptools.HttpRequestParser(self)
        self._incoming: Request | None = None
        self._num_head_bytes = 0  # of a head that is not complete yet
        self._is_in_head = True
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None  # it is being answered
        self._account: Account | None = None
        self._upstream: Upstream | None = None
        self._task: asyncio.Task[None] | None = None
        self._extra_headers = b""  # for the answer that comes next
        self._ends_at_s = math.inf
        self._is_ending = False  # what still comes is no request any more
        self.deadline = math.inf

    # Of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = transport
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        self.deadline = self._proxy.now() + _HEAD_S
        self._proxy.add(self)

    def data_received(self, data: bytes) -> None:
        """The client sends."""
        if self._is_ending:
            return
        if self._is_in_head:
            self._num_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end_here()
        except httptools.HttpParserError as error:
            self._refuse_all(RefusedError(400, f"got what is no HTTP request: {error}"))
        if self._is_in_head and self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse_all(RefusedError(431, f"got a head of more than {MAX_HEAD_BYTES} bytes"))

    def connection_lost(self, _error: Exception | None) -> None:
        """The client has gone: so does its request."""
        self._is_ending = True
        self._proxy.remove(self)
        for request in (*self._waiting, self._incoming):
            if request:
                self._proxy.free(request)
        self._waiting.clear()
        if self._task:
            self._task.cancel()
        if self._upstream:
            self._upstream.forget()
        self._leave()

    def pause_writing(self) -> None:
        """The client reads slower than tritonserver answers."""
        self.deadline = self._proxy.now() + _READ_S
        if self._upstream:
            self._upstream.pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self.deadline = math.inf if self._current else self._proxy.now() + _IDLE_S
        if self._upstream:
            self._upstream.resume()

    # Of httptools.

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._is_ending:
            return
        self._incoming = Request()
        if self._current is None:
            self.deadline = self._proxy.now() + _HEAD_S

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        if self._incoming:
            self._incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers."""
        if self._incoming and self._is_in_head:  # else it comes after a body in chunks
            self._incoming.take_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head is there: it may be refused before its body comes."""
        request, now = self._incoming, self._proxy.now()
        if request is None:
            return
        self._is_in_head, self._num_head_bytes = False, 0
        parser = self._parser
        request.end_head(parser.get_method(), parser.get_http_version(), parser.should_keep_alive())
        self._proxy.judge(request, self._address)
        if request.refusal:
            self._refuse_all(request.refusal)
            return
        self._ends_at_s = now + _WHOLE_BODY_S
        self.deadline = now + _BODY_S if self._current is None else self.deadline
        if request.awaits_continue and self._current is None:
            self._transport.write(_CONTINUE)

    def on_body(self, piece: bytes) -> None:
        """A piece of its body."""
        request = self._incoming
        if request is None or self._is_ending:
            return
        try:
            self._proxy.take_body(request, piece)
        except RefusedError as refusal:
            self._refuse_all(refusal)
        if self._current is None:
            self.deadline = min(self._proxy.now() + _BODY_S, self._ends_at_s)

    def on_message_complete(self) -> None:
        """It is there as a whole."""
        request, self._incoming = self._incoming, None
        self._is_in_head = True
        if request is None or self._is_ending:
            return
        if len(self._waiting) >= _MAX_WAITING:
            self._proxy.free(request)
            self._refuse_all(RefusedError(400, f"got more than {_MAX_WAITING} requests at once"))
            return
        self._waiting.append(request)
        self._begin_next()

    # What becomes of a request.

    def _refuse_all(self, refusal: RefusedError) -> None:
        """Refuses what is coming in, in its turn; the rest of the connection can't be read."""
        if self._is_ending:
            return
        request, self._incoming = self._incoming or Request(), None
        self._proxy.free(request)
        refusal.is_last = True
        request.refusal = refusal
        self._is_ending = True
        self._waiting.append(request)
        self._begin_next()

    def _end_here(self) -> None:
        """What comes after the last request is in another protocol, which it asked to go on in."""
        last = self._waiting[-1] if self._waiting else self._current
        if last:
            last.is_last = self._is_ending = True
        else:
            self._refuse_all(RefusedError(400, "got a request for another protocol"))

    def _begin_next(self) -> None:
        if self._current or not self._waiting:
            return
        request = self._current = self._waiting.popleft()
        self.deadline = math.inf
        self._extra_headers = self._cors_lines(request)
        try:
            if request.refusal:
                raise request.refusal
            if request.method == b"OPTIONS":
                wanted = request.text_of(b"access-control-request-headers")
                self._answer(204, b"", cors.preflight(wanted))
                return
            self._proxy.callers.enter(request.account)
            self._account = request.account
            payload = self._proxy.checked(request)
            upstream = self._proxy.pool.take() if isinstance(payload, bytes) else None
        except RefusedError as refusal:
            self._answer_refusal(refusal)
            return
        if upstream and isinstance(payload, bytes):
            self._ask(upstream, payload)
        else:
            self._task = self._proxy.run(self._ask_later(payload))

    def _cors_lines(self, request: Request) -> bytes:
        found = cors.headers(self._proxy.access, request.text_of(b"origin"))
        return "".join(f"{name}: {value}\r\n" for name, value in found.items()).encode("latin-1")

    def _ask(self, upstream: Upstream, payload: bytes) -> None:
        self._upstream = upstream
        upstream.ask(self, payload)

    async def _ask_later(self, payload: Any) -> None:
        """The same where a check or a connection takes a moment."""
        try:
            ready: bytes = payload if isinstance(payload, bytes) else await payload
            upstream = self._proxy.pool.take() or await self._proxy.pool.connect()
        except RefusedError as refusal:
            self._answer_refusal(refusal)
        except OSError:
            self._answer_refusal(RefusedError(503, _STARTING, {"Retry-After": "1"}))
        except Exception as error:  # noqa: BLE001, the edge of a request
            text = f"internal error of the proxy: {type(error).__name__}"
            self._answer_refusal(RefusedError(500, text))
        else:
            self._ask(upstream, ready)

    def take_answer(self, data: bytes) -> None:
        """Bytes of the answer."""
        if self._extra_headers:
            line, end, rest = data.partition(b"\r\n")
            if end:
                data = b"".join((line, end, self._extra_headers, rest))
                self._extra_headers = b""
        self._transport.write(data)

    def end_answer(self, upstream: Upstream) -> None:
        """The answer is complete."""
        self._upstream = None
        self._end(is_last=not upstream.keeps_alive)

    def lose_answer(self, upstream: Upstream) -> None:
        """Tritonserver has closed the connection, or died."""
        self._upstream = None
        request = self._current
        if not upstream.has_begun:
            self._answer_refusal(RefusedError(502, _GONE, is_last=True))
        elif request and request.version == b"1.0":
            self._transport.close()  # which is how its answer ends
        else:
            self._transport.abort()

    def _answer_refusal(self, refusal: RefusedError) -> None:
        body = json.dumps({"error": refusal.text}).encode()
        headers = {"Content-Type": "application/json", **refusal.headers}
        self._answer(refusal.status, body, headers, is_last=refusal.is_last)

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str], *, is_last: bool = False
    ) -> None:
        request = self._current
        closes = is_last or self._proxy.is_stopping or bool(request and request.is_last)
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if status != HTTPStatus.NO_CONTENT:
            lines.append(f"Content-Length: {len(body)}")
        lines.append(f"Connection: {'close' if closes else 'keep-alive'}")
        head = "".join(f"{line}\r\n" for line in lines).encode("latin-1", "replace")
        extra, self._extra_headers = self._extra_headers, b""
        self._transport.write(b"".join((head, extra, b"\r\n", body)))
        self._end(is_last=is_last)

    def _end(self, *, is_last: bool) -> None:
        """The request is answered: the next one, or the connection's end."""
        request, self._current, self._task = self._current, None, None
        self._leave()
        if is_last or self._proxy.is_stopping or (request and request.is_last):
            self._linger()
            return
        now = self._proxy.now()
        self.deadline = now + (_IDLE_S if self._incoming is None else _BODY_S)
        if self._incoming and self._incoming.awaits_continue:
            self._transport.write(_CONTINUE)
        self._begin_next()

    def _linger(self) -> None:
        """Closes once the client has read the answer: what it still sends would reset it away."""
        if not self._is_ending:
            self._is_ending = True
            self._transport.close()
            return
        self.deadline = self._proxy.now() + _LINGER_S
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _leave(self) -> None:
        account, self._account = self._account, None
        if account:
            account.leave()

    # Of the proxy.

    @property
    def is_idle(self) -> bool:
        """Whether no request of its is under way."""
        return self._current is None and not self._waiting

    def time_out(self) -> None:
        """Its deadline has passed."""
        if self._incoming and not self._is_ending and self._current is None:
            self._refuse_all(RefusedError(408, "the request did not come in time"))
            self.deadline = self._proxy.now() + _LINGER_S
        else:
            self._transport.abort()

    def close(self) -> None:
        """Of an idle connection: at once."""
        self._transport.close()

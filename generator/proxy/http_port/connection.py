"""One client's HTTP connection: its requests in their order, each checked, passed on, answered."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from typing import Any

import httptools

from generator.proxy import cors
from generator.proxy.callers import Account
from generator.proxy.http_port.answer import answer
from generator.proxy.http_port.proxy import HttpProxy, Payload
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
        self._num_head_bytes = 0  # or of what goes with chunks, since the last piece of a body
        self._is_in_head = True
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None  # it is being answered
        self._account: Account | None = None
        self._upstream: Upstream | None = None
        self._task: asyncio.Task[None] | None = None
        self._extra_headers = b""  # for the answer that comes next
        self._ends_at_s = math.inf  # when the whole body must be there
        self._is_ending = False  # what still comes is no request any more
        self._is_full = False  # the client has not read what was written
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
        self._num_head_bytes += len(data)
        while data and not self._is_ending:
            data = self._parse(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse_all(RefusedError(431, f"got headers of more than {MAX_HEAD_BYTES} bytes"))

    def _parse(self, data: bytes) -> bytes:
        """Returns what is left after a request that asks for another protocol, which nobody speaks
        here: httptools stops before its body, so a head of our own goes before the rest.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parser = httptools.HttpRequestParser(self)
            head = self._incoming.framing() if self._incoming else b""
            return head + data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            self._refuse_all(_internal_error(error.__context__ or error))
        except httptools.HttpParserError as error:
            self._refuse_all(RefusedError(400, f"got what is no HTTP request: {error}"))
        return b""

    def connection_lost(self, _error: Exception | None) -> None:
        """The client has gone: so does its request."""
        self._is_ending = True
        self._proxy.remove(self)
        for request in (*self._waiting, self._incoming, self._current):
            if request:
                self._proxy.free(request)
        self._waiting.clear()
        if self._task:
            self._task.cancel()
        if self._upstream:
            self._upstream.forget()
        self._leave()

    def pause_writing(self) -> None:
        """The client reads slower than it is answered: nothing more is, until it has caught up."""
        self._is_full = True
        self.deadline = self._proxy.now() + _READ_S
        if self._upstream:
            self._upstream.pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._is_full = False
        self._set_deadline()
        if self._upstream:
            self._upstream.resume()
        self._begin_next()

    # Of httptools.

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._is_ending or not self._is_in_head:  # or it is a head of our own
            return
        self._incoming = Request()
        self._set_deadline()

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        if self._incoming and self._is_in_head:
            self._incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers."""
        if self._incoming and self._is_in_head:  # else it comes after a body in chunks
            self._incoming.take_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head is there: it may be refused before its body comes."""
        request = self._incoming
        if request is None or not self._is_in_head:
            return
        self._is_in_head, self._num_head_bytes = False, 0
        parser = self._parser
        request.end_head(parser.get_method(), parser.get_http_version(), parser.should_keep_alive())
        self._proxy.judge(request, self._address)
        if request.refusal:
            self._refuse_all(request.refusal)
            return
        self._ends_at_s = self._proxy.now() + _WHOLE_BODY_S
        self._set_deadline()
        self._let_continue()

    def on_body(self, piece: bytes) -> None:
        """A piece of its body."""
        self._num_head_bytes = 0
        request = self._incoming
        if request is None or self._is_ending:
            return
        try:
            self._proxy.take_body(request, piece)
        except RefusedError as refusal:
            self._refuse_all(refusal)
        else:
            self._set_deadline()

    def on_message_complete(self) -> None:
        """It is there as a whole."""
        if self._incoming and self._incoming.has_body and self._parser.should_upgrade():
            return  # its body comes yet
        request, self._incoming = self._incoming, None
        self._is_in_head, self._num_head_bytes = True, 0
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

    def _begin_next(self) -> None:
        if self._current or self._is_full or not self._waiting:
            return
        request = self._current = self._waiting.popleft()
        self._set_deadline()
        self._extra_headers = self._cors_lines(request)
        try:
            self._begin(request)
        except RefusedError as refusal:
            self._answer_refusal(refusal)
        except Exception as error:  # noqa: BLE001, the edge of a request
            self._answer_refusal(_internal_error(error))

    def _begin(self, request: Request) -> None:
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
        if self._is_full:
            upstream.pause()

    async def _ask_later(self, payload: Payload) -> None:
        """The same where a check or a connection takes a moment."""
        try:
            ready = payload if isinstance(payload, bytes) else await payload()
            upstream = self._proxy.pool.take() or await self._proxy.pool.connect()
        except RefusedError as refusal:
            self._answer_refusal(refusal)
        except OSError:
            self._answer_refusal(RefusedError(503, _STARTING, {"Retry-After": "1"}))
        except Exception as error:  # noqa: BLE001, the edge of a request
            self._answer_refusal(_internal_error(error))
        else:
            self._ask(upstream, ready)

    def end_request(self) -> None:
        """Tritonserver has all of it."""
        if self._current:
            self._proxy.free(self._current)

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
            self.close()  # which is how its answer ends
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
        extra, self._extra_headers = self._extra_headers, b""
        self._transport.write(answer(status, body, headers, extra, closes=closes))
        self._end(is_last=is_last)

    def _end(self, *, is_last: bool) -> None:
        """The request is answered: the next one, or the connection's end."""
        request, self._current, self._task = self._current, None, None
        if request:
            self._proxy.free(request)
        self._leave()
        if is_last or self._proxy.is_stopping or (request and request.is_last):
            self._linger()
            return
        self._ends_at_s = self._proxy.now() + _WHOLE_BODY_S  # its time begins with its turn
        self._set_deadline()
        self._begin_next()
        self._let_continue()

    def _let_continue(self) -> None:
        """Tells a client to send the body that it asked about, once the turn has come to it."""
        request = self._incoming
        if request is None or self._is_in_head or self._is_ending or not self.is_idle:
            return
        if request.awaits_continue and not request.body:
            request.awaits_continue = False
            self._transport.write(_CONTINUE)

    def _linger(self) -> None:
        """Closes once the client has read the answer: what it still sends would reset it away."""
        if not self._is_ending:
            self.close()
            return
        self._set_deadline()
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
        else:
            self.abort()

    def close(self) -> None:
        """Once the client has read what was written."""
        self._is_ending = True
        self.deadline = self._proxy.now() + _READ_S
        self._transport.close()

    def abort(self) -> None:
        """At once."""
        self._transport.abort()

    def _set_deadline(self) -> None:
        """Of what must come next, beginning now."""
        if self._is_full:
            return
        now = self._proxy.now()
        if self._current:
            self.deadline = math.inf
        elif self._is_ending:
            self.deadline = now + _LINGER_S
        elif self._incoming is None:
            self.deadline = now + _IDLE_S
        elif self._is_in_head:
            self.deadline = now + _HEAD_S
        else:
            self.deadline = min(now + _BODY_S, self._ends_at_s)


def _internal_error(error: BaseException) -> RefusedError:
    return RefusedError(500, f"internal error of the proxy: {type(error).__name__}")

"""One client's HTTP connection: the requests read from it, and when each is answered."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from enum import Enum, auto
from typing import Any

import httptools

from hf_triton.ports.http.proxy import Exchange, HttpProxy
from hf_triton.ports.http.request import MAX_HEAD_BYTES, Request
from hf_triton.ports.port import BODY_S, HEAD_S, IDLE_S, LINGER_S, PIECE_S, UNREAD_S
from hf_triton.ports.refusal import RefusedError, refusal_of

_MAX_WAITING = 64  # requests that a client sent before the one under way was answered
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Phase(Enum):
    """A client's next bytes: a request, the rest of a head, of a body, or nothing to read."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    OVER = auto()


_LIMITS_S = {Phase.IDLE: IDLE_S, Phase.HEAD: HEAD_S, Phase.OVER: LINGER_S}


class HttpConnection(asyncio.Protocol):
    """A client's connection. It ``has_room`` while the client reads what was written."""

    transport: Any

    def __init__(self, proxy: HttpProxy) -> None:
        self._proxy = proxy
        self._parser = httptools.HttpRequestParser(self)
        self._phase = Phase.IDLE
        self._num_head_bytes = 0  # or of what goes with chunks, since the last piece of a body
        self._ends_at_s = math.inf  # when the whole body must be there
        self._incoming = Request(proxy.bodies)
        self._address = ""
        self._waiting: deque[Request] = deque()
        self._exchange: Exchange | None = None
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.deadline = math.inf

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        self.deadline = self._proxy.now() + HEAD_S
        self._proxy.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._num_head_bytes += len(data)
        while data and self._phase is not Phase.OVER:
            data = self._parse(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse(RefusedError(431, f"got headers of more than {MAX_HEAD_BYTES} bytes"))

    def connection_lost(self, _error: Exception | None) -> None:
        self._phase = Phase.OVER
        self._proxy.connections.remove(self)
        for request in (*self._waiting, self._incoming):
            request.free()
        self._waiting.clear()
        if self._exchange:
            self._exchange.abandon()

    def pause_writing(self) -> None:
        """The client reads slower than it is answered: nothing more is, until it has caught up."""
        self.has_room.clear()
        self.deadline = self._proxy.now() + UNREAD_S

    def resume_writing(self) -> None:
        self.has_room.set()
        self._set_deadline()

    # Requests out of the client's bytes. What the parser calls may raise RefusedError.

    def _parse(self, data: bytes) -> bytes:
        """Returns what is left after a request that asks for another protocol, which nobody speaks
        here: httptools stops before its body, so a head of our own goes before the rest.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parser = httptools.HttpRequestParser(self)
            head = self._incoming.framing() if self._phase is Phase.BODY else b""
            return head + data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            self._refuse(refusal_of(error.__context__ or error))
        except httptools.HttpParserError as error:
            self._refuse(RefusedError(400, f"got something that is not an HTTP request: {error}"))
        return b""

    def _refuse(self, refusal: RefusedError) -> None:
        """Refuses what is coming in, in its turn; the rest of the connection can't be read."""
        if self._phase is not Phase.OVER:
            self._phase = Phase.OVER
            self._incoming.free()
            self._incoming.refusal = refusal.with_traceback(None)  # which holds the request
            self._incoming.is_last = True
            self._take_request()

    def on_message_begin(self) -> None:
        if self._phase is Phase.IDLE:  # else it is a head of our own
            self._phase = Phase.HEAD
            self._set_deadline()

    def on_url(self, url: bytes) -> None:
        if self._phase is Phase.HEAD:
            self._incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is Phase.HEAD:  # else it comes after a body in chunks
            self._incoming.take_header(name, value)

    def on_headers_complete(self) -> None:
        if self._phase is not Phase.HEAD:
            return
        request, parser = self._incoming, self._parser
        request.end_head(parser.get_method(), parser.get_http_version(), parser.should_keep_alive())
        self._proxy.judge(request, self._address)
        self._phase, self._num_head_bytes = Phase.BODY, 0
        self._ends_at_s = self._proxy.now() + BODY_S
        self._set_deadline()
        self._let_continue()

    def on_body(self, piece: bytes) -> None:
        self._num_head_bytes = 0
        self._incoming.take_body(piece)
        self._set_deadline()

    def on_message_complete(self) -> None:
        if self._incoming.has_body and self._parser.should_upgrade():
            return  # its body comes yet
        if len(self._waiting) >= _MAX_WAITING:
            raise RefusedError(400, f"got more than {_MAX_WAITING} requests at once")
        self._phase, self._num_head_bytes = Phase.IDLE, 0
        self._take_request()

    # Handling of a request.

    def _take_request(self) -> None:
        """Takes a whole request, or one with a ``refusal``, after which nothing is read."""
        self._waiting.append(self._incoming)
        self._incoming = Request(self._proxy.bodies)
        self._begin_next()

    def _begin_next(self) -> None:
        if self._waiting and not self._exchange:
            self._exchange = Exchange(self, self._proxy, self._waiting.popleft())
            self._set_deadline()

    def end_exchange(self, *, is_last: bool) -> None:
        """A request is answered: the next one, or the connection's end."""
        self._exchange = None
        if not is_last:
            # The time of a body that has come early begins with its turn.
            self._ends_at_s = self._proxy.now() + BODY_S
            self._set_deadline()
            self._begin_next()
            self._let_continue()
        elif self._phase is not Phase.OVER:
            self.close()
        else:  # closes once the client has read it: what it still sends would reset it away
            self._set_deadline()
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def _let_continue(self) -> None:
        """Tells a client to send the body that it asked about, once, when its turn has come."""
        if self.is_idle and self._incoming.awaits_continue:
            self._incoming.awaits_continue = False
            self.transport.write(_CONTINUE)

    def _set_deadline(self) -> None:
        """The client has sent something, or has been answered."""
        if not self.has_room.is_set():
            return
        now = self._proxy.now()
        if self._exchange:
            self.deadline = math.inf
        elif self._phase is Phase.BODY:
            self.deadline = min(now + PIECE_S, self._ends_at_s)
        else:
            self.deadline = now + _LIMITS_S[self._phase]

    # Called by the proxy.

    @property
    def is_idle(self) -> bool:
        return self._exchange is None and not self._waiting

    def time_out(self, now: float) -> None:
        if now <= self.deadline:
            return
        if self._phase in (Phase.HEAD, Phase.BODY) and self._exchange is None:
            self._refuse(RefusedError(408, "the request did not come in time"))
        else:
            self.abort()

    def stop(self) -> None:
        if self.is_idle:
            self.close()

    def close(self) -> None:
        """Once the client has read what was written."""
        self._phase = Phase.OVER
        self.deadline = self._proxy.now() + UNREAD_S
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

"""Requests out of the bytes of one client's connection. What becomes of them it does not know."""

from __future__ import annotations

import math
from typing import Protocol

import httptools

from hf_triton.ports.http.proxy import HttpProxy
from hf_triton.ports.http.request import MAX_HEAD_BYTES, Request
from hf_triton.ports.port import BODY_S, HEAD_S, IDLE_S, PIECE_S
from hf_triton.ports.refusal import RefusedError, refusal_of


class Taker(Protocol):
    """Who gets the requests, in their order."""

    def take_request(self, request: Request) -> None:
        """A whole one; or one with a ``refusal``, after which nothing is read."""

    def set_deadline(self) -> None:
        """The client has sent something: ``deadline`` begins anew."""

    def let_continue(self) -> None:
        """The client asks whether to send its body."""


class RequestReader:
    """What a client sends. ``incoming`` is the request that has begun to come, ``is_over`` says
    that what still comes is no request any more, and ``address`` is the client's.
    """

    def __init__(self, proxy: HttpProxy, taker: Taker) -> None:
        self._proxy, self._taker = proxy, taker
        self._parser = httptools.HttpRequestParser(self)
        self._num_head_bytes = 0  # or of what goes with chunks, since the last piece of a body
        self._is_in_head = True
        self._ends_at_s = math.inf  # when the whole body must be there
        self.incoming: Request | None = None
        self.is_over = False
        self.address = ""

    def feed(self, data: bytes) -> None:
        self._num_head_bytes += len(data)
        while data and not self.is_over:
            data = self._parse(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self.refuse(RefusedError(431, f"got headers of more than {MAX_HEAD_BYTES} bytes"))

    def _parse(self, data: bytes) -> bytes:
        """Returns what is left after a request that asks for another protocol, which nobody speaks
        here: httptools stops before its body, so a head of our own goes before the rest.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parser = httptools.HttpRequestParser(self)
            head = self.incoming.framing() if self.incoming else b""
            return head + data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            self.refuse(refusal_of(error.__context__ or error))
        except httptools.HttpParserError as error:
            self.refuse(RefusedError(400, f"got what is no HTTP request: {error}"))
        return b""

    def refuse(self, refusal: RefusedError) -> None:
        """Refuses what is coming in, in its turn; the rest of the connection can't be read."""
        if self.is_over:
            return
        request, self.incoming = self.incoming or Request(), None
        self._proxy.free(request)
        refusal.is_last = True
        request.refusal = refusal
        self.is_over = True
        self._taker.take_request(request)

    def deadline(self, now: float) -> float:
        """When the next bytes must have come, the last ones having come ``now``."""
        if self.incoming is None:
            return now + IDLE_S
        if self._is_in_head:
            return now + HEAD_S
        return min(now + PIECE_S, self._ends_at_s)

    def begin_body(self, now: float) -> None:
        """The time of the whole body begins; that of one that comes early begins with its turn."""
        self._ends_at_s = now + BODY_S

    def asks_to_continue(self) -> bool:
        """Whether the client waits to be told to send a body; says so once."""
        request = self.incoming
        if request is None or self.is_over or request.body or not request.awaits_continue:
            return False
        request.awaits_continue = False
        return True

    # What httptools calls.

    def on_message_begin(self) -> None:
        if self.is_over or not self._is_in_head:  # or it is a head of our own
            return
        self.incoming = Request()
        self._taker.set_deadline()

    def on_url(self, url: bytes) -> None:
        if self.incoming and self._is_in_head:
            self.incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.incoming and self._is_in_head:  # else it comes after a body in chunks
            self.incoming.take_header(name, value)

    def on_headers_complete(self) -> None:
        request = self.incoming
        if request is None or not self._is_in_head:
            return
        self._is_in_head, self._num_head_bytes = False, 0
        parser = self._parser
        request.end_head(parser.get_method(), parser.get_http_version(), parser.should_keep_alive())
        self._proxy.judge(request, self.address)
        if request.refusal:
            self.refuse(request.refusal)
            return
        self.begin_body(self._proxy.now())
        self._taker.set_deadline()
        if request.awaits_continue:
            self._taker.let_continue()

    def on_body(self, piece: bytes) -> None:
        self._num_head_bytes = 0
        request = self.incoming
        if request is None or self.is_over:
            return
        try:
            self._proxy.take_body(request, piece)
        except RefusedError as refusal:
            self.refuse(refusal)
        else:
            self._taker.set_deadline()

    def on_message_complete(self) -> None:
        if self.incoming and self.incoming.has_body and self._parser.should_upgrade():
            return  # its body comes yet
        request, self.incoming = self.incoming, None
        self._is_in_head, self._num_head_bytes = True, 0
        if request and not self.is_over:
            self._taker.take_request(request)

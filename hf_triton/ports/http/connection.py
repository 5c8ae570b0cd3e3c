"""One client's HTTP connection: the requests read from it, one after another, and their answers."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import deque
from collections.abc import Mapping
from http import HTTPStatus
from http.client import responses
from typing import Any

from hf_triton.ports import cors
from hf_triton.ports.callers import Account
from hf_triton.ports.http.json_bodies import id_of, timeout_s_of
from hf_triton.ports.http.proxy import HttpProxy, Payload
from hf_triton.ports.http.reading import RequestReader
from hf_triton.ports.http.request import Request
from hf_triton.ports.http.unchunked import Unchunked
from hf_triton.ports.http.upstream import Upstream
from hf_triton.ports.port import HEAD_S, LINGER_S, UNREAD_S
from hf_triton.ports.refusal import RefusedError, refusal_of
from hf_triton.ports.repeats import DIED, GONE, Held
from hf_triton.tritonserver.http_api import error_in

_MAX_WAITING = 64  # requests that a client sent before the one under way was answered
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_END_OF_CHUNK = b"\n\n\r\n"  # and of an event
_ERROR_EVENT = re.compile(rb'[0-9a-f]+\r\ndata: \{"error":(.*)\}\n\n')


class HttpConnection(asyncio.Protocol):
    """From its start to its end."""

    def __init__(self, proxy: HttpProxy) -> None:
        self._proxy = proxy
        self._transport: Any = None
        self._reader = RequestReader(proxy, self)
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None  # it is being answered
        self._account: Account | None = None
        self._held: Held | None = None  # what may be sent again
        self._payload: Payload | None = None  # of that
        self._unsaid = bytearray()  # of an answer that may be none, or half an event
        self._has_begun = self._is_again = False
        self._upstream: Upstream | None = None
        self._task: asyncio.Task[None] | None = None
        self._extra_headers = b""  # for the answer that comes next
        self._unchunked: Unchunked | None = None  # where the client knows no chunks
        self._is_full = False  # the client has not read what was written
        self.deadline = math.inf

    # Of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = transport
        self._reader.address = (transport.get_extra_info("peername") or ("",))[0]
        self.deadline = self._proxy.now() + HEAD_S
        self._proxy.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """The client sends."""
        self._reader.feed(data)

    def connection_lost(self, _error: Exception | None) -> None:
        """The client has gone: so does its request."""
        self._reader.is_over = True
        self._proxy.connections.remove(self)
        for request in (*self._waiting, self._reader.incoming, self._current):
            if request:
                self._proxy.free(request)
        self._waiting.clear()
        if self._task:
            self._task.cancel()
        if self._upstream:
            self._proxy.leave(self._upstream, self._current)
        self._leave()

    def pause_writing(self) -> None:
        """The client reads slower than it is answered: nothing more is, until it has caught up."""
        self._is_full = True
        self.deadline = self._proxy.now() + UNREAD_S
        if self._upstream:
            self._upstream.pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._is_full = False
        self.set_deadline()
        if self._upstream:
            self._upstream.resume()
        self._begin_next()

    # Of the reader, and what becomes of a request.

    def take_request(self, request: Request) -> None:
        """A whole one, or the refusal of one, which is the last."""
        if len(self._waiting) >= _MAX_WAITING and not request.refusal:
            self._proxy.free(request)
            self._reader.refuse(RefusedError(400, f"got more than {_MAX_WAITING} requests at once"))
            return
        self._waiting.append(request)
        self._begin_next()

    def _begin_next(self) -> None:
        if self._current or self._is_full or not self._waiting:
            return
        request = self._current = self._waiting.popleft()
        self.set_deadline()
        self._unchunked = Unchunked() if request.version == b"1.0" else None
        self._extra_headers = cors.lines(self._proxy.access, request.text_of(b"origin"))
        try:
            self._begin(request)
        except Exception as error:  # noqa: BLE001, the edge of a request
            self._answer_refusal(refusal_of(error))

    def _begin(self, request: Request) -> None:
        if request.refusal:
            raise request.refusal
        if request.method == b"OPTIONS":
            wanted = request.text_of(b"access-control-request-headers")
            self._answer(204, b"", cors.preflight(wanted))
            return
        self._proxy.callers.enter(request.account)
        self._account = request.account
        if self._proxy.is_ready_asleep(request):
            self._answer(200, b"", {})
            return
        payload = self._proxy.checked(request)
        may_go = True
        if request.asked:
            self._payload = payload
            lose, describe, repeats = self._lose_model, self._describe, self._proxy.repeats
            self._held = Held(repeats, request.asked, lose, describe, request.stream)
            may_go = self._held.may_go()
        upstream = self._proxy.pool.take() if may_go and isinstance(payload, bytes) else None
        if upstream and isinstance(payload, bytes):
            self._ask(upstream, payload)
        else:
            self._task = self._proxy.run(self._ask_later(payload, may_go=may_go))

    def _describe(self) -> tuple[float, str]:
        payload = self._payload if isinstance(self._payload, bytes) else b""
        return timeout_s_of(payload), id_of(payload)

    def _ask(self, upstream: Upstream, payload: bytes) -> None:
        self._upstream = upstream
        upstream.ask(self, payload)
        if self._is_full:
            upstream.pause()

    async def _ask_later(self, payload: Payload, *, may_go: bool) -> None:
        """The same where its model, a check or a connection takes a moment."""
        try:
            if self._held and not may_go:
                await self._held.turn()
            ready = await self._proxy.prepared(payload)
            if self._payload is not None:
                self._payload = ready
            upstream = await self._proxy.connected()
            if self._held and self._current and self._current.name:
                ready = self._held.as_sent_again(ready, self._current.name)
        except Exception as error:  # noqa: BLE001, the edge of a request
            refusal = refusal_of(error)
            if not self._ask_again_after(refusal.text):
                self._answer_refusal(refusal)
        else:
            self._is_again = self._has_begun
            self._ask(upstream, ready)

    def _ask_again_after(self, error: str) -> bool:
        """Whether it is asked again, because an error says that its model is away."""
        held, payload = self._held, self._payload
        if not (held and payload is not None and held.is_away(error)):
            return False
        self._task = self._proxy.run(self._ask_later(payload, may_go=False))
        return True

    def _lose_model(self) -> None:
        """The process of its model has died."""
        upstream, self._upstream = self._upstream, None
        if upstream:
            upstream.forget()
            self._lose(upstream)

    def _lose(self, upstream: Upstream) -> None:
        """What can't go on ends; what can is asked again."""
        self._unsaid.clear()
        if self._held and self._payload is not None:
            self._held.lost()
            self._task = self._proxy.run(self._ask_later(self._payload, may_go=False))
        elif not (upstream.status or self._has_begun):
            self._answer_refusal(RefusedError(503, GONE, {"Retry-After": "1"}, is_last=True))
        elif upstream.is_between_chunks or self._is_again:
            self._end_stream(DIED)
        elif self._current and self._current.version == b"1.0":
            self.close()  # which is how its answer ends
        else:
            self._transport.abort()

    def end_request(self) -> None:
        """Tritonserver has all of it."""
        if self._current and not (
            self._held and self._proxy.bodies.may_keep(self._current.num_buffered)
        ):
            self._payload = None
            self._proxy.free(self._current)

    def take_answer(self, data: bytes) -> None:
        """Bytes of the answer. Those of an error are held: it may say that the model is away."""
        upstream, held = self._upstream, self._held
        if not (upstream and held):
            self._write_answer(data)
            return
        if not self._has_begun or self._is_again:
            self._unsaid += data
            is_error = upstream.status >= HTTPStatus.BAD_REQUEST and self._payload is not None
            if not upstream.status or is_error:
                return
            data = bytes(self._unsaid)
            self._unsaid.clear()
            self._begin_answer()
            if self._is_again:
                data, self._is_again = data.partition(b"\r\n\r\n")[2], False
        if self._payload is None:
            self._write_answer(data)
        else:
            self._take_events(upstream, held, data)

    def _take_events(self, upstream: Upstream, held: Held, data: bytes) -> None:
        """Passes on whole events of a stream that may go on in another process."""
        self._unsaid += data
        size = len(self._unsaid)
        if not upstream.is_between_chunks:
            size = self._unsaid.rfind(_END_OF_CHUNK) + len(_END_OF_CHUNK)
            if size < len(_END_OF_CHUNK):
                return
        events = bytes(self._unsaid[:size])
        del self._unsaid[:size]
        error = _ERROR_EVENT.search(events)
        is_lost = error and self._ask_again_after(error[1].decode(errors="replace"))
        if error and is_lost:
            events = events[: error.start()]
            self._unsaid.clear()
            self._upstream = None
            upstream.forget()
        held.passed_on(events.count(b"\n\n"))
        self._write_answer(events)

    def _begin_answer(self) -> None:
        """Only a stream that can go on in another process is asked again from here on; whole
        answers are safe, other streams can be lost still.
        """
        self._has_begun = True
        if self._held and self._current and self._current.streams:
            self._held.has_begun = True
        elif self._held:
            self._held.end()
            self._held = None
        if not (self._held and self._held.may_go_on):
            self._payload = None
            if self._current:
                self._proxy.free(self._current)

    def _write_answer(self, data: bytes) -> None:
        if self._extra_headers:
            line, end, rest = data.partition(b"\r\n")
            if end:
                data = b"".join((line, end, self._extra_headers, rest))
                self._extra_headers = b""
        self._write(data)

    def _write(self, data: bytes) -> None:
        self._transport.write(self._unchunked.feed(data) if self._unchunked else data)

    def end_answer(self, upstream: Upstream) -> None:
        """The answer is complete."""
        self._upstream = None
        if self._unsaid:
            body = self._unsaid.partition(b"\r\n\r\n")[2].decode(errors="replace")
            answer = bytes(self._unsaid)
            self._unsaid.clear()
            if (self._is_again or not self._has_begun) and self._ask_again_after(body):
                return
            if self._is_again:
                self._end_stream(error_in(body) or DIED)
                return
            self._begin_answer()
            self._write_answer(answer)
        self._end(is_last=not upstream.keeps_alive)

    def lose_answer(self, upstream: Upstream) -> None:
        """Tritonserver has closed the connection, or died."""
        self._upstream = None
        self._lose(upstream)

    def _end_stream(self, error: str) -> None:
        """Its last event."""
        event = b"data: %b\n\n" % json.dumps({"error": error}).encode()
        self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
        self._end(is_last=True)

    def _answer_refusal(self, refusal: RefusedError) -> None:
        if self._has_begun:
            self._end_stream(refusal.text)
            return
        body = json.dumps({"error": refusal.text}).encode()
        headers = {"Content-Type": "application/json", **refusal.headers}
        self._answer(refusal.status, body, headers, is_last=refusal.is_last)

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str], *, is_last: bool = False
    ) -> None:
        request = self._current
        closes = is_last or self._proxy.is_stopping or bool(request and request.is_last)
        extra, self._extra_headers = self._extra_headers, b""
        self._transport.write(_answer_bytes(status, body, headers, extra, closes=closes))
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
        self._reader.begin_body(self._proxy.now())
        self.set_deadline()
        self._begin_next()
        self.let_continue()

    def let_continue(self) -> None:
        """Tells a client to send the body that it asked about, once the turn has come to it."""
        if self.is_idle and self._reader.asks_to_continue():
            self._transport.write(_CONTINUE)

    def _linger(self) -> None:
        """Closes once the client has read the answer: what it still sends would reset it away."""
        if not self._reader.is_over:
            self.close()
            return
        self.set_deadline()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _leave(self) -> None:
        held, self._held, self._payload = self._held, None, None
        self._has_begun = self._is_again = False
        if held:
            held.end()
        account, self._account = self._account, None
        if account:
            account.leave()

    # Of the proxy.

    @property
    def is_idle(self) -> bool:
        """Whether no request of its is under way."""
        return self._current is None and not self._waiting

    def time_out(self, now: float) -> None:
        """Ends what its deadline has passed for."""
        if now <= self.deadline:
            return
        if self._reader.incoming and not self._reader.is_over and self._current is None:
            self._reader.refuse(RefusedError(408, "the request did not come in time"))
        else:
            self.abort()

    def stop(self) -> None:
        """Closes once what is under way is answered."""
        if self.is_idle:
            self.close()

    def close(self) -> None:
        """Once the client has read what was written."""
        self._reader.is_over = True
        self.deadline = self._proxy.now() + UNREAD_S
        self._transport.close()

    def abort(self) -> None:
        """At once."""
        self._transport.abort()

    def set_deadline(self) -> None:
        """Of what must come next, beginning now."""
        if self._is_full:
            return
        if self._current:
            self.deadline = math.inf
        elif self._reader.is_over:
            self.deadline = self._proxy.now() + LINGER_S
        else:
            self.deadline = self._reader.deadline(self._proxy.now())


def _answer_bytes(
    status: int, body: bytes, headers: Mapping[str, str], extra: bytes, *, closes: bool
) -> bytes:
    """A whole answer; ``extra`` are header lines as they are, ``closes`` says that it is the
    connection's last.
    """
    lines = [f"HTTP/1.1 {status} {responses.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if status != HTTPStatus.NO_CONTENT:
        lines.append(f"Content-Length: {len(body)}")
    lines.append(f"Connection: {'close' if closes else 'keep-alive'}")
    head = "".join(f"{line}\r\n" for line in lines).encode("latin-1", "replace")
    return b"".join((head, extra, b"\r\n", body))

"""One request of an HTTP connection: asked of tritonserver, again where its model was away, and
answered.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from http.client import responses
from typing import Any

from hf_triton.ports import cors
from hf_triton.ports.callers import Account
from hf_triton.ports.http.json_bodies import timeout_s_of
from hf_triton.ports.http.proxy import HttpProxy, Payload
from hf_triton.ports.http.request import Request
from hf_triton.ports.http.upstream import Asker, Upstream
from hf_triton.ports.refusal import RefusedError, refusal_of
from hf_triton.ports.retries import DIED, GONE, STARTING, InFlight
from hf_triton.tritonserver.http_api import error_in

_END_OF_CHUNK = b"\n\n\r\n"  # and of an event
_ERROR_EVENT = re.compile(rb'[0-9a-f]+\r\ndata: \{"error":(.*)\}\n\n')


class Exchange(Asker):
    """A request of a client's HttpConnection, and its answer. ``upstream`` is the connection over
    which it is asked.
    """

    def __init__(self, connection: Any, proxy: HttpProxy, request: Request) -> None:
        self._connection, self._proxy, self._request = connection, proxy, request
        self.upstream: Upstream | None = None
        self._account: Account | None = None
        self._in_flight: InFlight | None = None  # what may be sent again
        self._unwritten = bytearray()  # of an answer that may be none, or half an event
        self._has_begun = self._is_again = False
        self._task: asyncio.Task[None] | None = None
        self._extra_headers = cors.lines(proxy.access, request.text_of(b"origin"))

    def begin(self) -> None:
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001, the edge of a request
            self._answer_refusal(refusal_of(error))

    def _begin(self) -> None:
        request = self._request
        if request.refusal:
            raise request.refusal
        if request.method == b"OPTIONS":
            wanted = request.text_of(b"access-control-request-headers")
            self._answer(204, b"", cors.preflight(wanted))
            return
        self._proxy.callers.enter(request.account)
        self._account = request.account
        if request.endpoint == "ready" and self._proxy.retries.model(request.model).is_asleep:
            self._answer(200, b"", {})  # its next request has it loaded
            return
        payload, may_send = self._proxy.checked(request), True
        if request.awaited_model:
            self._in_flight = InFlight(
                self._proxy.retries,
                request.awaited_model,
                self._lose_model,
                self._timeout_s,
                request.call_name if request.streams else "",
                payload,
            )
            may_send = self._in_flight.send_now()
        upstream = self._proxy.pool.take() if may_send and isinstance(payload, bytes) else None
        if upstream and isinstance(payload, bytes):
            self._ask(upstream, payload)
        else:
            self._task = self._proxy.run(self._ask_later(payload, may_send=may_send))

    def _timeout_s(self) -> float:
        payload = self._in_flight.payload if self._in_flight else None
        return timeout_s_of(payload if isinstance(payload, bytes) else b"")

    def _ask(self, upstream: Upstream, payload: bytes) -> None:
        self.upstream = upstream
        upstream.ask(self, payload)
        if self._connection.is_full:
            upstream.pause()

    async def _ask_later(self, payload: Payload, *, may_send: bool) -> None:
        """Asks once its model is there, its body is checked and a connection is made."""
        try:
            if self._in_flight and not may_send:
                await self._in_flight.wait_until_sendable()
            ready = payload if isinstance(payload, bytes) else await payload()
            if self._in_flight and self._in_flight.payload is not None:
                self._in_flight.payload = ready
            upstream = self._proxy.pool.take() or await self._proxy.pool.connect()
            if self._in_flight and self._request.call_name:
                ready = self._in_flight.as_sent_again(ready, self._request.call_name)
        except Exception as error:  # noqa: BLE001, the edge of a request
            self._take_failure(error)
        else:
            self._is_again = self._has_begun
            self._ask(upstream, ready)

    # Apart: an error that a local variable names holds its frame and the payload there.
    def _take_failure(self, error: Exception) -> None:
        refusal = refusal_of(error)
        if isinstance(error, OSError):
            refusal = RefusedError(503, STARTING, {"Retry-After": "1"})
        if not self._ask_again_after(refusal.text):
            self._answer_refusal(refusal)

    def _ask_again_after(self, error: str) -> bool:
        """Whether it is asked again, because an error says that its model is away."""
        in_flight = self._in_flight
        if not (in_flight and in_flight.is_retryable(error)):
            return False
        self._task = self._proxy.run(self._ask_later(in_flight.payload, may_send=False))
        return True

    def _lose_model(self) -> None:
        upstream, self.upstream = self.upstream, None
        if upstream:
            upstream.forget()
            self._lose(upstream)

    def _lose(self, upstream: Upstream) -> None:
        """Asks again where the request can go on, and ends it otherwise."""
        self._unwritten.clear()
        in_flight = self._in_flight
        if in_flight and in_flight.may_be_sent_again():
            in_flight.lost()
            self._task = self._proxy.run(self._ask_later(in_flight.payload, may_send=False))
        elif not (upstream.status or self._has_begun):
            self._answer_refusal(RefusedError(503, GONE, {"Retry-After": "1"}, is_last=True))
        elif upstream.is_between_chunks or self._is_again:
            self._end_stream(DIED)
        elif self._request.version == b"1.0":
            self._connection.close()  # which is how its answer ends
        else:
            self._connection.abort()

    # What the connection to tritonserver calls.

    def end_request(self) -> None:
        if self._in_flight and self._proxy.bodies.may_keep(self._request.num_buffered):
            return
        if self._in_flight:
            self._in_flight.payload = None
        self._proxy.free(self._request)

    def take_answer(self, data: bytes) -> None:
        """Bytes of an error are held: it may say that the model is away."""
        upstream, in_flight = self.upstream, self._in_flight
        if not (upstream and in_flight):
            self._write_answer(data)
            return
        if not self._has_begun or self._is_again:
            self._unwritten += data
            is_error = upstream.status >= HTTPStatus.BAD_REQUEST and in_flight.payload is not None
            if not upstream.status or is_error:
                return
            data = bytes(self._unwritten)
            self._unwritten.clear()
            self._begin_answer()
            if self._is_again:
                data, self._is_again = data.partition(b"\r\n\r\n")[2], False
        if in_flight.payload is None:
            self._write_answer(data)
        else:
            self._take_events(upstream, in_flight, data)

    def _take_events(self, upstream: Upstream, in_flight: InFlight, data: bytes) -> None:
        """Passes on whole events of a stream that may go on in another process."""
        self._unwritten += data
        size = len(self._unwritten)
        if not upstream.is_between_chunks:
            size = self._unwritten.rfind(_END_OF_CHUNK) + len(_END_OF_CHUNK)
            if size < len(_END_OF_CHUNK):
                return
        events = bytes(self._unwritten[:size])
        del self._unwritten[:size]
        error = _ERROR_EVENT.search(events)
        if error and self._ask_again_after(error[1].decode(errors="replace")):
            events = events[: error.start()]
            self._unwritten.clear()
            self.upstream = None
            upstream.forget()
        in_flight.passed_on(events.count(b"\n\n"))
        self._write_answer(events)

    def _begin_answer(self) -> None:
        """Only a stream that can go on in another process is asked again from here on; whole
        answers are safe, other streams can be lost still.
        """
        self._has_begun = True
        if self._in_flight and self._request.streams:
            self._in_flight.has_begun = True
        elif self._in_flight:
            self._in_flight.end()
            self._in_flight = None
        if not (self._in_flight and self._in_flight.may_be_sent_again()):
            self._proxy.free(self._request)

    def end_answer(self, upstream: Upstream) -> None:
        self.upstream = None
        if self._unwritten:
            answer = bytes(self._unwritten)
            body = answer.partition(b"\r\n\r\n")[2].decode(errors="replace")
            self._unwritten.clear()
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
        self.upstream = None
        self._lose(upstream)

    # What the client gets.

    def _write_answer(self, data: bytes) -> None:
        if self._extra_headers:
            line, end, rest = data.partition(b"\r\n")
            if end:
                data = b"".join((line, end, self._extra_headers, rest))
                self._extra_headers = b""
        self._connection.transport.write(data)

    def _end_stream(self, error: str) -> None:
        event = b"data: %b\n\n" % json.dumps({"error": error}).encode()
        self._connection.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
        self._end(is_last=True)

    def _answer_refusal(self, refusal: RefusedError) -> None:
        if self._has_begun:
            self._end_stream(refusal.text)
            return
        body = json.dumps({"error": refusal.text}).encode()
        headers = {"Content-Type": "application/json", **refusal.headers}
        self._answer(refusal.status, body, headers, is_last=refusal.is_last)

    def _answer(
        self, status: int, body: bytes, headers: Mapping[str, str], *, is_last: bool = False
    ) -> None:
        lines = [f"HTTP/1.1 {status} {responses.get(status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if status != HTTPStatus.NO_CONTENT:
            lines.append(f"Content-Length: {len(body)}")
        lines.append(f"Connection: {'close' if self._closes(is_last) else 'keep-alive'}")
        head = "".join(f"{line}\r\n" for line in lines).encode("latin-1", "replace")
        self._connection.transport.write(b"".join((head, self._extra_headers, b"\r\n", body)))
        self._end(is_last=is_last)

    def _closes(self, is_last: bool) -> bool:
        """Whether the connection ends with this request."""
        return is_last or self._proxy.is_stopping or self._request.is_last

    def _end(self, *, is_last: bool) -> None:
        self._leave()
        self._connection.end_exchange(is_last=self._closes(is_last))

    def abandon(self) -> None:
        """The client has gone: so does its request."""
        if self._task:
            self._task.cancel()
        if self.upstream:
            self._proxy.leave(self.upstream, self._request)
        self._leave()

    def _leave(self) -> None:
        self._proxy.free(self._request)
        in_flight, account = self._in_flight, self._account
        self._in_flight = self._account = None
        if in_flight:
            in_flight.end()
        if account:
            account.leave()

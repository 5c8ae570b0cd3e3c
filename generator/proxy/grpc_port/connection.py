"""One client's HTTP/2 connection, and the one to tritonserver that serves it.

What tritonserver answers goes to the client frame by frame as it comes. What the client sends is
read: a call goes on once its first message is complete and checked, with a number of its own.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from generator.proxy.grpc_port import frames as h2
from generator.proxy.grpc_port.call import Call, prefixed
from generator.proxy.grpc_port.frames import Frame, ProtocolError, Splitter
from generator.proxy.grpc_port.heads import HeadReader
from generator.proxy.grpc_port.messages import CALLER, Output
from generator.proxy.grpc_port.port import GrpcPort
from generator.proxy.grpc_port.triton_end import (
    CONNECTION_WINDOW_BYTES,
    MAX_CALLS,
    WINDOW_BYTES,
    TritonEnd,
)
from generator.proxy.refusal import RefusedError

_HANDSHAKE_S, _MESSAGE_S = 10.0, 120.0
_MAX_WAITING = 64
_MAX_HEAD_BYTES, _MAX_CONTINUATIONS = 65_536, 16
_CODES = {400: 3, 401: 16, 408: 1, 413: 8, 429: 8, 501: 12, 503: 14}
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_ANSWER_HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]


class GrpcConnection(asyncio.Protocol):
    """The client's end."""

    def __init__(self, port: GrpcPort) -> None:
        self._port = port
        self._transport: Any = None
        self._unwritten: list[bytes] = []
        self._triton: TritonEnd | None = None
        self._preface: bytes | None = b""  # what has come of it; None once it is complete
        self._splitter = Splitter(h2.MAX_FRAME_BYTES)
        self._heads = HeadReader(keeps_keys=port.callers.have_keys)
        self._block: tuple[int, int, list[bytes]] | None = None  # a head that is not complete
        self._calls: dict[int, Call] = {}
        self.last_stream = 0
        self._num_unread = 0
        self.has_client = True
        self.is_closing = False
        self.began_at_s = port.now()

    # Of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come: nothing is read before tritonserver is reached."""
        self._transport = transport
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        self._transport.pause_reading()
        self._port.add(self)
        self._port.run(self._connect())

    async def _connect(self) -> None:
        try:
            _, triton = await asyncio.get_running_loop().create_unix_connection(
                lambda: TritonEnd(self, self._port.soon), self._port.socket
            )
        except OSError:
            self._transport.abort()
            return
        self._triton = triton
        if self.has_client:
            self._transport.resume_reading()
        else:
            self._end_if_done()

    def data_received(self, data: bytes) -> None:
        """The client sends."""
        try:
            if self._preface is not None:
                data = self._take_preface(data)
            for frame in self._splitter.feed(data):
                self._take(frame)
        except ProtocolError:
            goaway = self.last_stream.to_bytes(4, "big") + h2.PROTOCOL_ERROR.to_bytes(4, "big")
            self._write(h2.frame(h2.GOAWAY, 0, 0, goaway))
            self.write_all()
            self._transport.close()
            self._lose_client()

    def connection_lost(self, _error: Exception | None) -> None:
        """The client has gone."""
        self._lose_client()

    def pause_writing(self) -> None:
        """The client reads slower than tritonserver answers."""
        if self._triton:
            self._triton.transport.pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self._triton:
            self._triton.transport.resume_reading()

    def _lose_client(self) -> None:
        if not self.has_client:
            return
        self.has_client = False
        self._port.remove(self)
        for call in list(self._calls.values()):
            self._leave(call)
        if self._triton:
            self._triton.transport.resume_reading()
            self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._calls and self._triton and not self.has_client:
            self._triton.write_all()
            self._triton.transport.close()
        elif not self._calls and self.is_closing:
            self.write_all()
            self._transport.close()

    # What the client sends.

    def _take_preface(self, data: bytes) -> bytes:
        found = (self._preface or b"") + data
        length = len(h2.PREFACE)
        if not h2.PREFACE.startswith(found[:length]):
            raise ProtocolError
        if len(found) < length:
            self._preface = found
            return b""
        self._preface = None
        return found[length:]

    def _take(self, frame: Frame) -> None:
        kind, flags, stream, whole = frame
        if self._block and kind != h2.CONTINUATION:
            raise ProtocolError
        if kind == h2.DATA:
            self._take_data(flags, stream, whole)
        elif kind == h2.HEADERS:
            self._block = (stream, flags, [h2.payload_of(flags, whole)])
            self._take_block(flags)
        elif kind == h2.CONTINUATION:
            self._take_continuation(flags, stream, whole)
        elif kind == h2.WINDOW_UPDATE:
            self._take_window_update(stream, whole)
        elif kind == h2.RST_STREAM:
            call = self._calls.get(stream)
            if call:
                self._leave(call)
        elif kind == h2.SETTINGS:
            self._pass_settings_on(flags, whole)
        elif kind == h2.PING:
            self._write_to_triton(whole)
        elif kind == h2.PUSH_PROMISE:
            raise ProtocolError

    def _pass_settings_on(self, flags: int, whole: bytes) -> None:
        if flags & h2.ACK:
            self._write_to_triton(whole)
            return
        # Its heads depend on none before: those that no client wants can be left out.
        self._write_to_triton(h2.settings_frame({**h2.settings_of(whole), h2.HEADER_TABLE_SIZE: 0}))

    def _take_window_update(self, stream: int, whole: bytes) -> None:
        call = self._calls.get(stream)
        if stream == 0:
            self._write_to_triton(whole)
        elif call and call.triton_stream:
            self._write_to_triton(h2.renumbered(whole, call.triton_stream))
        elif call:
            call.credit += h2.number_of(whole)

    def _take_continuation(self, flags: int, stream: int, whole: bytes) -> None:
        if not self._block or self._block[0] != stream:
            raise ProtocolError
        pieces = self._block[2]
        pieces.append(whole[9:])
        if len(pieces) > _MAX_CONTINUATIONS or sum(map(len, pieces)) > _MAX_HEAD_BYTES:
            raise ProtocolError
        self._take_block(flags)

    def _take_block(self, flags: int) -> None:
        if self._block is None or not flags & h2.END_HEADERS:
            return
        (stream, first_flags, pieces), self._block = self._block, None
        head = self._heads.read(b"".join(pieces))
        call = self._calls.get(stream)
        if call is None:
            if stream % 2 == 0 or stream <= self.last_stream:
                raise ProtocolError
            self.last_stream = stream
            if len(self._calls) >= MAX_CALLS or self.is_closing:
                code = h2.REFUSED_STREAM.to_bytes(4, "big")
                self._write(h2.frame(h2.RST_STREAM, 0, stream, code))
                return
            window = self._triton.initial_window if self._triton else 0
            call = Call(stream, head, window, self._port.now())
            self._calls[stream] = call
            try:
                call.account = self._port.admit(head, self._address)
            except RefusedError as refusal:
                self._refuse(call, refusal)
                return
        if first_flags & h2.END_STREAM:
            self._end_of_client(call)

    def _take_data(self, flags: int, stream: int, whole: bytes) -> None:
        num_bytes = len(whole) - 9
        self._num_unread += num_bytes
        if self._num_unread > CONNECTION_WINDOW_BYTES:
            raise ProtocolError  # more than it was allowed
        if self._num_unread > CONNECTION_WINDOW_BYTES // 2:
            self._write(h2.window_update(0, self._num_unread))
            self._num_unread = 0
        call = self._calls.get(stream)
        if call is None or call.is_left or call.is_sent:
            return
        call.incoming += h2.payload_of(flags, whole)
        call.num_unread += num_bytes
        if call.num_unread > WINDOW_BYTES // 2 and not flags & h2.END_STREAM:
            self._write(h2.window_update(stream, call.num_unread))
            call.num_unread = 0
        try:
            for message in call.messages(self._port.max_message_bytes):
                self._take_message(call, message)
            self._port.hold(call)
        except RefusedError as refusal:
            self._refuse(call, refusal)
            return
        if flags & h2.END_STREAM:
            self._end_of_client(call)

    def _end_of_client(self, call: Call) -> None:
        if call.incoming or not (call.num_sent or call.waiting is not None):
            self._refuse(call, RefusedError(400, "got a call without a whole message"))
            return
        call.is_sent = True
        if call.waiting is None:
            self._flush(call)

    # What goes on to tritonserver.

    def _take_message(self, call: Call, message: bytes) -> None:
        """Raises RefusedError."""
        if call.waiting is not None:
            call.waiting.append(message)
            if len(call.waiting) > _MAX_WAITING:
                raise RefusedError(429, f"got more than {_MAX_WAITING} requests at once")
            return
        classified = self._port.check(call, message)
        if classified:
            call.waiting = [message]
            self._port.run(self._take_later(call, classified))
        else:
            self._send(call, message)

    async def _take_later(self, call: Call, classified: list[Output]) -> None:
        """The same where tritonserver must be asked about the model first."""
        try:
            for output in classified:
                await self._port.triton.check_classified(output)
            if call.is_left:
                return
            (first, *others), call.waiting = call.waiting or [], None
            self._send(call, first)
            for message in others:
                self._take_message(call, message)
        except RefusedError as refusal:
            self._refuse(call, refusal)
        else:
            if call.is_sent and call.waiting is None:
                self._flush(call)

    def _send(self, call: Call, message: bytes) -> None:
        if not call.triton_stream and self._triton:
            call.triton_stream = self._triton.open(call)
            alias = call.account.alias if call.account else ""
            block = call.head.block
            if alias:
                block += h2.header_block([(CALLER.encode(), alias.encode())])
            self._write_to_triton(h2.header_frames(call.triton_stream, block))
            if call.credit:
                self._write_to_triton(h2.window_update(call.triton_stream, call.credit))
        call.num_sent += 1
        call.pending += prefixed(message)
        if self._port.is_stream(call):  # others wait for the end of sending, which goes on with it
            self._flush(call)

    def _flush(self, call: Call) -> None:
        if self._triton and call.triton_stream:
            self._triton.flush(call)
            self._port.release(call)

    def flush_all(self) -> None:
        """Tritonserver takes more."""
        for call in list(self._calls.values()):
            if call.pending:
                self._flush(call)

    def _write_to_triton(self, data: bytes) -> None:
        if self._triton:
            self._triton.write(data)

    def _write(self, data: bytes) -> None:
        if not self._unwritten:
            self._port.soon(self.write_all)
        self._unwritten.append(data)

    def write_all(self) -> None:
        """Once for all that came together: each write costs more than what is done for a call."""
        if not self._transport.is_closing():
            self._transport.write(b"".join(self._unwritten))
        self._unwritten.clear()

    # How calls end.

    def _refuse(self, call: Call, refusal: RefusedError) -> None:
        """Ends a call with an error, its first answer or its last."""
        if call.is_left or not self.has_client:
            return
        code = _CODES.get(refusal.status, 2)
        headers = [] if call.has_answer else list(_ANSWER_HEAD)
        headers += [
            (b"grpc-status", str(code).encode()),
            (b"grpc-message", quote(refusal.text, safe=_PRINTABLE).encode()),
        ]
        block = h2.header_block(headers)
        self._write(h2.header_frames(call.stream, block, h2.END_STREAM))
        if not call.is_sent:
            code_bytes = h2.NO_ERROR.to_bytes(4, "big")
            self._write(h2.frame(h2.RST_STREAM, 0, call.stream, code_bytes))
        self._leave(call)

    def _leave(self, call: Call) -> None:
        """The client wants no more of it. What tritonserver has begun is cancelled or ends by
        itself, as it bears it.
        """
        if call.is_left:
            return
        call.is_left = True
        call.incoming.clear()
        if not call.triton_stream:
            self._forget(call)
        elif self._port.triton.bears_cancels and call.num_sent == 1 and call.has_answer:
            self._cancel(call)
        else:
            call.is_sent = True
            self._flush(call)

    def _cancel(self, call: Call) -> None:
        code = h2.CANCEL.to_bytes(4, "big")
        self._write_to_triton(h2.frame(h2.RST_STREAM, 0, call.triton_stream, code))
        self._forget(call)

    def _forget(self, call: Call) -> None:
        if self._calls.pop(call.stream, None) is None:
            return
        call.is_left = True
        call.incoming.clear()
        call.pending.clear()
        self._port.release(call)
        if self._triton:
            self._triton.calls.pop(call.triton_stream, None)
        if call.account:
            call.account.leave()
        self._end_if_done()

    # What tritonserver says.

    def take_answer(self, data: bytes) -> None:
        """Frames for the client."""
        if self.has_client:
            self._write(data)

    def end_call(self, call: Call) -> None:
        """Tritonserver has ended it."""
        self._forget(call)

    def lose_triton(self) -> None:
        """Tritonserver has closed the connection, or died."""
        for call in list(self._calls.values()):
            self._forget(call)
        self._transport.abort()

    # Of the port.

    def stop(self) -> None:
        """Takes no more calls, and closes when the last one has ended."""
        self.is_closing = True
        goaway = self.last_stream.to_bytes(4, "big") + h2.NO_ERROR.to_bytes(4, "big")
        self._write(h2.frame(h2.GOAWAY, 0, 0, goaway))
        self._end_if_done()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked."""
        return not self._calls

    def close(self) -> None:
        """At once."""
        self._transport.close()

    def time_out(self, now: float) -> None:
        """Ends what takes too long to come."""
        if self._preface is not None and now - self.began_at_s > _HANDSHAKE_S:
            self._transport.abort()
        for call in list(self._calls.values()):
            if not call.num_sent and call.waiting is None and now - call.began_at_s > _MESSAGE_S:
                self._refuse(call, RefusedError(408, "the request did not come in time"))

"""One client's HTTP/2 connection: what comes is read, what tritonserver answers passed on.

Answers go to the client frame by frame as they come. A call goes on once its first message is
complete and checked. Neither end's pings, settings or mistakes reach the other: tritonserver must
not be made to give up a connection, which would cancel what goes on over it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from hf_triton.ports.grpc import frames as h2
from hf_triton.ports.grpc.call import Call
from hf_triton.ports.grpc.calls import Calls
from hf_triton.ports.grpc.frames import End, Frame, ProtocolError
from hf_triton.ports.grpc.heads import HeadReader
from hf_triton.ports.grpc.port import GrpcPort
from hf_triton.ports.grpc.triton_end import (
    CONNECTION_WINDOW_BYTES,
    MAX_CALLS,
    WINDOW_BYTES,
    TritonEnd,
)
from hf_triton.ports.repeats import WAIT_S

_HANDSHAKE_S = 10.0
_MAX_HEAD_BYTES, _MAX_CONTINUATIONS = 16_384, 16
_MAX_BUSY_S, _REST = 0.01, 4
_RECONNECT_EVERY_S = 0.1
_MAX_SETTINGS = 64  # that tritonserver has not taken yet


class GrpcConnection(End):
    """The client's end."""

    def __init__(self, port: GrpcPort) -> None:
        super().__init__(h2.MAX_FRAME_BYTES)
        self._port = port
        self._triton = TritonEnd(self)
        self._calls = Calls(port, self._triton, self.take_answer, self._end_if_done)
        self._preface: bytes | None = b""  # what has come of it; None once it is complete
        self._unread: deque[Frame] = deque()
        self._rests = False
        self._heads = HeadReader(keeps_keys=port.callers.have_keys)
        self._block: tuple[int, int, list[bytes]] | None = None  # a head that is not complete
        self._num_unread = 0
        self._num_settings = 0
        self._settings: dict[int, int] = {}  # of the client
        self.call_window = h2.DEFAULT_WINDOW_BYTES
        self._reasons_to_pause = 1  # tritonserver is not reached yet
        self.answer_window = h2.DEFAULT_WINDOW_BYTES
        self.last_stream = 0
        self.has_client = True
        self.deadline = port.now() + _HANDSHAKE_S

    # Of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come: nothing is read before tritonserver is reached."""
        self.transport = transport
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        self.transport.pause_reading()
        self._port.connections.add(self)
        self._port.run(self._connect())

    async def _connect(self) -> None:
        if await self._reach(self._triton):
            self.resume()
            self._end_if_done()
        else:
            self.transport.abort()

    async def _reach(self, triton: TritonEnd) -> bool:
        """Connects to tritonserver, for as long as one that has died may take to come back."""
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + WAIT_S
        while self.has_client:
            try:
                await loop.create_unix_connection(lambda: triton, self._port.socket)
            except OSError:
                if not self._port.repeats.may_come_back or loop.time() > ends_at_s:
                    return False
            else:
                return True
            await asyncio.sleep(_RECONNECT_EVERY_S)
        return False

    def data_received(self, data: bytes) -> None:
        """The client sends."""
        try:
            if self._preface is not None:
                data = self._take_preface(data)
            self._unread.extend(self.splitter.feed(data))
            if not self._rests:
                self._take_all()
        except ProtocolError:
            self._give_up()

    def _take_all(self) -> None:
        """Takes what has come; after a while others come first. Raises ProtocolError."""
        began_at_s = self._port.now()
        while self._unread:
            self._take(self._unread.popleft())
            took_s = self._port.now() - began_at_s
            if took_s > _MAX_BUSY_S and self._unread:
                self._rests = True
                self.pause()
                asyncio.get_running_loop().call_later(took_s * _REST, self._go_on)
                return

    def _go_on(self) -> None:
        self._rests = False
        self.resume()
        try:
            self._take_all()
        except ProtocolError:
            self._give_up()

    def _give_up(self) -> None:
        self.write(h2.goaway(self.last_stream, h2.PROTOCOL_ERROR))
        self.write_all()
        self.transport.close()
        self.connection_lost(None)

    def connection_lost(self, _error: Exception | None) -> None:
        """The client has gone."""
        if not self.has_client:
            return
        self.has_client = False
        self._unread.clear()
        for call in list(self._calls.by_stream.values()):
            self._calls.leave(call)
        if self._triton.transport:
            self._triton.transport.resume_reading()
        self._end_if_done()

    def pause_writing(self) -> None:
        """The client reads slower than it is answered: nothing more is asked."""
        self.pause()
        if self._triton.transport:
            self._triton.transport.pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        self.resume()
        if self._triton.transport:
            self._triton.transport.resume_reading()

    def pause(self) -> None:
        """Reads no more for now."""
        self._reasons_to_pause += 1
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Reads again, where nothing else is against it."""
        self._reasons_to_pause -= 1
        if not self._reasons_to_pause and not self.transport.is_closing():
            self.transport.resume_reading()

    def _end_if_done(self) -> None:
        if self._calls.by_stream:
            return
        if not self.has_client:
            self._port.connections.remove(self)
            if self._triton.transport:
                self._triton.write_all()
                self._triton.transport.close()
        elif self._port.is_stopping:
            self.write_all()
            self.transport.close()

    # What the client sends.

    def _take_preface(self, data: bytes) -> bytes:
        found = (self._preface or b"") + data
        length = len(h2.PREFACE)
        if not h2.PREFACE.startswith(found[:length]):
            raise ProtocolError
        self._preface = found if len(found) < length else None
        return found[length:]

    def _take(self, frame: Frame) -> None:
        kind, flags, stream, whole = frame
        if bool(self._block) != (kind == h2.CONTINUATION):
            raise ProtocolError
        if kind == h2.DATA:
            self._take_data(flags, stream, whole)
        elif kind == h2.HEADERS:
            self._block = (stream, flags, [h2.payload_of(flags, whole)])
            self._take_block(flags)
        elif kind == h2.CONTINUATION:
            self._take_continuation(flags, stream, whole)
        elif kind == h2.WINDOW_UPDATE:
            self._take_window_update(stream, h2.number_of(whole))
        elif kind == h2.RST_STREAM:
            call = self._calls.by_stream.get(stream)
            if call:
                self._calls.leave(call)
        elif kind == h2.SETTINGS and not flags & h2.ACK:
            self._take_settings(whole)
        elif kind == h2.PING and not flags & h2.ACK:
            self.write(h2.frame(h2.PING, h2.ACK, 0, whole[9:17]))
        elif kind == h2.PUSH_PROMISE:
            raise ProtocolError

    def _take_settings(self, whole: bytes) -> None:
        settings = h2.settings_for_triton(whole)
        window = settings.get(h2.INITIAL_WINDOW_SIZE, self.call_window)
        for call in self._calls.by_stream.values():
            call.answer_window += window - self.call_window
            if call.answer_window > h2.MAX_WINDOW_BYTES:
                raise ProtocolError
        self.call_window = window
        self._settings |= settings
        self._num_settings += 1
        if self._num_settings > _MAX_SETTINGS:
            raise ProtocolError
        self._triton.write(h2.settings_frame(settings))

    def acknowledge(self) -> None:
        """Triton has taken the client's settings."""
        self._num_settings -= 1
        self.take_answer(h2.frame(h2.SETTINGS, h2.ACK, 0))

    def _take_window_update(self, stream: int, increment: int) -> None:
        call = self._calls.by_stream.get(stream)
        end = self if stream == 0 else call
        if end is None or (call and call.is_left):
            return
        end.answer_window += increment
        if not increment or end.answer_window > h2.MAX_WINDOW_BYTES:
            raise ProtocolError
        if call and call.relay:
            self._calls.flush_answer(call)
        elif call and not call.triton_stream:
            call.credit += increment
        else:
            triton_stream = call.triton_stream if call else 0
            self._triton.write(h2.window_update(triton_stream, increment))

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
        block = b"".join(pieces)
        call = self._calls.by_stream.get(stream)
        if stream > self.last_stream:
            call = self._begin(stream, block)
        else:
            self._heads.skip(block)
        if call and first_flags & h2.END_STREAM:
            self._calls.end_sending(call)

    def _begin(self, stream: int, block: bytes) -> Call | None:
        if stream % 2 == 0:
            raise ProtocolError
        self.last_stream = stream
        head = self._heads.read(block)
        if len(self._calls.by_stream) >= MAX_CALLS or self._port.is_stopping:
            self.write(h2.rst_stream(stream, h2.REFUSED_STREAM))
            return None
        call = Call(stream, head, self._port.now(), self.call_window)
        self._calls.begin(call, self._address)
        return call

    def _take_data(self, flags: int, stream: int, whole: bytes) -> None:
        num_bytes = len(whole) - 9
        self._num_unread += num_bytes
        if self._num_unread > CONNECTION_WINDOW_BYTES // 2:
            self.write(h2.window_update(0, self._num_unread))
            self._num_unread = 0
        payload = h2.payload_of(flags, whole)
        call = self._calls.by_stream.get(stream)
        if call is None:
            return
        self._calls.take_data(call, payload)
        if flags & h2.END_STREAM:
            self._calls.end_sending(call)
            return
        call.num_unread += num_bytes
        if call.num_unread > WINDOW_BYTES // 2 and not call.is_left:
            self.write(h2.window_update(stream, call.num_unread))
            call.num_unread = 0

    # What the client is told.

    def take_answer(self, data: bytes) -> None:
        """A frame for the client."""
        if self.has_client:
            self.write(data)

    # Of tritonserver's end.

    def holds_back(self, call: Call, frame: Frame) -> bool:
        """Whether a frame is not for the client, because its call is sent again."""
        return self._calls.holds_back(call, frame)

    def end_call(self, call: Call) -> None:
        """Triton has ended it."""
        self._calls.forget(call)

    def flush_all(self) -> None:
        """Triton takes more."""
        self._calls.flush_all()

    def lose_triton(self, triton: TritonEnd) -> None:
        """Triton has closed the connection, or died: calls go to the next one."""
        if triton is not self._triton:
            return
        if self.has_client and self._port.repeats.may_come_back and not self.transport.is_closing():
            self._follow(triton)
            return
        for call in list(self._calls.by_stream.values()):
            self._calls.forget(call)
        self.write_all()
        self.transport.close()

    def _follow(self, gone: TritonEnd) -> None:
        while self._num_settings:
            self.acknowledge()
        if gone.is_full:
            self.resume()
        self._triton = TritonEnd(self)
        self._triton.follow(self._settings, self.answer_window)
        self._calls.lose_triton(self._triton)
        self._port.run(self._connect_again(self._triton))

    async def _connect_again(self, triton: TritonEnd) -> None:
        if await self._reach(triton):
            self._end_if_done()
        elif self.has_client:
            self.transport.close()
            self.connection_lost(None)

    # Of the port.

    def stop(self) -> None:
        """Takes no more calls, and closes once the last one is answered."""
        self.write(h2.goaway(self.last_stream, h2.NO_ERROR))
        self._end_if_done()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked."""
        return not self._calls.by_stream

    def abort(self) -> None:
        """Closes at once."""
        self.transport.abort()

    def time_out(self, now: float) -> None:
        """Ends what takes too long to come."""
        if self._preface is not None and now > self.deadline:
            self.transport.abort()
        self._calls.time_out(now)

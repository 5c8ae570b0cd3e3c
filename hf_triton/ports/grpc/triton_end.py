"""The connection to tritonserver that serves one client's: what is said on it, frame by frame."""

from __future__ import annotations

import asyncio
from typing import Protocol

from hf_triton.ports.grpc import frames as h2
from hf_triton.ports.grpc.call import Call
from hf_triton.ports.grpc.frames import End, Frame, ProtocolError

MAX_CALLS = 1024  # of one connection at once
WINDOW_BYTES = 1 << 20  # of one call: a client may send so much before it is read
CONNECTION_WINDOW_BYTES = 1 << 24
_ANY_LENGTH = 1 << 24


class ClientEnd(Protocol):
    """What it needs of the client's end."""

    has_client: bool
    call_window: int  # how much the client lets Triton send of a call that begins
    last_stream: int
    answer_window: int  # how much the client lets Triton send, all calls together

    def take_answer(self, data: bytes) -> None:
        """A frame for the client."""

    def holds_back(self, call: Call, frame: Frame) -> bool:
        """Whether it is not for the client, because the call is sent again."""

    def end_call(self, call: Call) -> None:
        """Triton has ended it."""

    def flush_all(self) -> None:
        """Triton takes more."""

    def pause(self) -> None:
        """Triton reads slower than the client sends."""

    def resume(self) -> None:
        """It has caught up."""

    def acknowledge(self) -> None:
        """Triton has taken the client's settings."""

    def lose_triton(self, triton: TritonEnd) -> None:
        """Triton has closed this connection, or died."""


class TritonEnd(End):
    """Frames are passed on, but those of flow control: each end has its own for what is sent."""

    def __init__(self, client: ClientEnd) -> None:
        super().__init__(_ANY_LENGTH)
        self.client = client
        self.is_full = False
        self.calls: dict[int, Call] = {}  # by tritonserver's numbers
        self.initial_window = h2.DEFAULT_WINDOW_BYTES
        self._window = h2.DEFAULT_WINDOW_BYTES
        self._last_stream = -1
        self._is_known = False  # its settings have come
        self._follows = False  # one that has gone

    def follow(self, settings: dict[int, int], window: int) -> None:
        """It takes the place of one that has gone: the client has been greeted."""
        self._is_known = self._follows = True
        self.write(h2.settings_frame(settings))
        if window > self._window:
            self.write(h2.window_update(0, window - self._window))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is reached."""
        self.transport = transport
        self.unwritten.insert(0, h2.PREFACE)
        self.write_all()

    def connection_lost(self, _error: Exception | None) -> None:
        """It has ended, or both ends have said all."""
        self.client.lose_triton(self)

    def pause_writing(self) -> None:
        """It reads slower than the client sends."""
        self.is_full = True
        self.client.pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self.is_full = False
        self.client.resume()

    def open(self, call: Call) -> int:
        """A number for a call."""
        self._last_stream += 2
        call.window = self.initial_window
        self.calls[self._last_stream] = call
        return self._last_stream

    def flush(self, call: Call) -> None:
        """Sends what may be sent of a call."""
        pending, pieces, place = call.pending, [], 0
        while place < len(pending):
            size = min(len(pending) - place, h2.MAX_FRAME_BYTES, self._window, call.window)
            if size <= 0:
                break
            piece = bytes(pending[place : place + size])
            place += size
            self._window -= size
            call.window -= size
            is_last = call.is_sent and place == len(pending)
            call.is_passed_on |= is_last
            flags = h2.END_STREAM if is_last else 0
            pieces.append(h2.frame(h2.DATA, flags, call.triton_stream, piece))
        del pending[:place]
        if call.is_sent and not pending and not call.is_passed_on:
            call.is_passed_on = True
            pieces.append(h2.frame(h2.DATA, h2.END_STREAM, call.triton_stream))
        if pieces:
            self.write(b"".join(pieces))

    def data_received(self, data: bytes) -> None:
        """It answers."""
        try:
            for frame in self.splitter.feed(data):
                self._take(frame)
        except ProtocolError:
            self.transport.abort()

    def _take(self, frame: Frame) -> None:
        kind, flags, stream, whole = frame
        if kind in (h2.DATA, h2.HEADERS, h2.CONTINUATION, h2.RST_STREAM):
            call = self.calls.get(stream)
            if call:
                self._take_answer(call, frame)
            elif kind == h2.DATA and len(whole) > 9:  # of one that is sent again
                self.write(h2.window_update(0, len(whole) - 9))
        elif kind == h2.WINDOW_UPDATE:
            self._take_window_update(stream, whole)
        elif kind == h2.SETTINGS:
            self._take_settings(flags, whole)
        elif kind == h2.GOAWAY:
            last = self.client.last_stream.to_bytes(4, "big")
            self.client.take_answer(h2.frame(h2.GOAWAY, 0, 0, last + whole[13:]))
        elif kind == h2.PING and not flags & h2.ACK:
            self.write(h2.frame(h2.PING, h2.ACK, 0, whole[9:]))

    def _take_answer(self, call: Call, frame: Frame) -> None:
        is_held = call.payload is not None or call.relay is not None
        if not (is_held and self.client.holds_back(call, frame)):
            self.pass_on(call, frame)

    def pass_on(self, call: Call, frame: Frame) -> None:
        """A frame of an answer that is for the client."""
        kind, flags, stream, whole = frame
        if kind != h2.CONTINUATION:
            call.is_over = kind == h2.RST_STREAM or bool(flags & h2.END_STREAM)
        if kind == h2.DATA:
            call.answer_window -= len(whole) - 9
            self.client.answer_window -= len(whole) - 9
        if not call.is_left:
            same = stream == call.stream
            self.client.take_answer(whole if same else h2.renumbered(whole, call.stream))
            call.has_answer = True
        elif kind == h2.DATA and not call.is_over:
            self.take_all(call)
        if call.is_over and (kind in (h2.DATA, h2.RST_STREAM) or flags & h2.END_HEADERS):
            self.client.end_call(call)

    def take_all(self, call: Call) -> None:
        """Lets Triton send what nobody reads, so that the call ends."""
        for end, stream in ((call, call.triton_stream), (self.client, 0)):
            if end.answer_window < WINDOW_BYTES // 2:
                self.write(h2.window_update(stream, WINDOW_BYTES - end.answer_window))
                end.answer_window = WINDOW_BYTES

    def _take_window_update(self, stream: int, whole: bytes) -> None:
        increment = h2.number_of(whole)
        call = self.calls.get(stream)
        if stream == 0:
            self._window += increment
        elif call:
            call.window += increment
        self.client.flush_all()

    def _take_settings(self, flags: int, whole: bytes) -> None:
        if flags & h2.ACK:
            if not self._follows:
                self.client.acknowledge()
            self._follows = False
            return
        self.write(h2.frame(h2.SETTINGS, h2.ACK, 0))
        settings = h2.settings_of(whole)
        window = settings.get(h2.INITIAL_WINDOW_SIZE, self.initial_window)
        for call in self.calls.values():
            call.window += window - self.initial_window
        self.initial_window = window
        if not self._is_known:
            self._greet(settings)
        self._is_known = True
        self.client.flush_all()

    def _greet(self, settings: dict[int, int]) -> None:
        most = min(MAX_CALLS, settings.get(h2.MAX_CONCURRENT_STREAMS, MAX_CALLS))
        ours = {
            h2.MAX_CONCURRENT_STREAMS: most,
            h2.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
            h2.MAX_HEADER_LIST_SIZE: h2.MAX_FRAME_BYTES,
        }
        if settings.get(h2.BINARY_METADATA) == 1:
            ours[h2.BINARY_METADATA] = 1
        self.client.take_answer(h2.settings_frame(ours))
        more = CONNECTION_WINDOW_BYTES - h2.DEFAULT_WINDOW_BYTES
        self.client.take_answer(h2.window_update(0, more))

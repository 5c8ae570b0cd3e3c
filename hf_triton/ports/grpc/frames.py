"""HTTP/2's frames and header blocks, as far as gRPC uses them (RFC 9113, RFC 7541)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from typing import Any

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION = 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 0, 1, 7, 8, 11
HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 3, 4, 5
MAX_HEADER_LIST_SIZE, BINARY_METADATA = 6, 0xFE03  # the last one is gRPC's own
MAX_WINDOW_BYTES = 2**31 - 1
MAX_FRAME_BYTES = 16_384
DEFAULT_WINDOW_BYTES = 65_535
_HEAD_BYTES = 9
_SETTING = struct.Struct(">HI")

Headers = list[tuple[bytes, bytes]]
Frame = tuple[int, int, int, bytes]  # kind, flags, stream, all of its bytes


class ProtocolError(Exception):
    """What a peer sent is not HTTP/2 as it is allowed here."""


class Splitter:
    """The frames in what comes from one peer."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now. Raises ProtocolError for one that is too long."""
        buffer = self._rest + data if self._rest else data
        found, place, end = [], 0, len(buffer)
        while end - place >= _HEAD_BYTES:
            length = int.from_bytes(buffer[place : place + 3], "big")
            if length > self._max_bytes:
                raise ProtocolError
            stop = place + _HEAD_BYTES + length
            if stop > end:
                break
            stream = int.from_bytes(buffer[place + 5 : place + 9], "big") & 0x7FFFFFFF
            found.append((buffer[place + 3], buffer[place + 4], stream, buffer[place:stop]))
            place = stop
        self._rest = buffer[place:]
        return found


class End(asyncio.Protocol):
    """One of the two connections between which calls are passed on. A frame that comes has at most
    ``max_bytes``.
    """

    def __init__(self, max_bytes: int) -> None:
        self.splitter = Splitter(max_bytes)
        self.transport: Any = None
        self.unwritten: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Soon, with all that comes together: each write costs as much as all else for a call."""
        if self.transport and not self.unwritten:
            asyncio.get_running_loop().call_soon(self.write_all)
        self.unwritten.append(data)

    def write_all(self) -> None:
        """What has come together."""
        if not self.transport.is_closing():
            self.transport.write(b"".join(self.unwritten))
        self.unwritten.clear()


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    head = (len(payload) << 40 | kind << 32 | flags << 24).to_bytes(8, "big")
    return b"".join((head[:5], stream.to_bytes(4, "big"), payload))


def renumbered(whole: bytes, stream: int) -> bytes:
    """A frame, of another stream."""
    return b"".join((whole[:5], stream.to_bytes(4, "big"), whole[_HEAD_BYTES:]))


def payload_of(flags: int, whole: bytes) -> bytes:
    """What a frame of DATA or HEADERS holds, without its padding. Raises ProtocolError."""
    start, end = _HEAD_BYTES, len(whole)
    if flags & PADDED:
        if start == end:
            raise ProtocolError
        end -= whole[start]
        start += 1
    if whole[3] == HEADERS and flags & WITH_PRIORITY:
        start += 5
    if start > end:
        raise ProtocolError
    return whole[start:end]


def number_of(whole: bytes) -> int:
    """The window's increment, or the code of an error. Raises ProtocolError."""
    if len(whole) != _HEAD_BYTES + 4:
        raise ProtocolError
    return int.from_bytes(whole[_HEAD_BYTES:], "big") & 0x7FFFFFFF


def rst_stream(stream: int, code: int) -> bytes:
    """A frame that ends a call."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last_stream: int, code: int) -> bytes:
    """A frame that says that no call after ``last_stream`` is taken."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big"))


def window_update(stream: int, increment: int) -> bytes:
    """A frame that lets the peer send so much more."""
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def settings_of(whole: bytes) -> dict[int, int]:
    """The settings in a frame. Raises ProtocolError."""
    payload = whole[_HEAD_BYTES:]
    if len(payload) % _SETTING.size or len(payload) > 64 * _SETTING.size:
        raise ProtocolError
    return dict(_SETTING.iter_unpack(payload))


def settings_for_triton(whole: bytes) -> dict[int, int]:
    """A client's settings, as tritonserver is told them. Raises ProtocolError.

    It must not be made to give up a connection or a call, which would be cancelled. Heads that
    depend on none before can be left out where no client wants them any more.
    """
    given = settings_of(whole)
    window = given.get(INITIAL_WINDOW_SIZE, 0)
    size = given.get(MAX_FRAME_SIZE, MAX_FRAME_BYTES)
    if window > MAX_WINDOW_BYTES or not MAX_FRAME_BYTES <= size < 1 << 24:
        raise ProtocolError
    passed_on = {HEADER_TABLE_SIZE: 0, MAX_FRAME_SIZE: size}
    if INITIAL_WINDOW_SIZE in given:
        passed_on[INITIAL_WINDOW_SIZE] = window
    if given.get(BINARY_METADATA) == 1:
        passed_on[BINARY_METADATA] = 1
    return passed_on


def settings_frame(settings: dict[int, int]) -> bytes:
    """A frame of settings."""
    payload = b"".join(_SETTING.pack(name, value) for name, value in settings.items())
    return frame(SETTINGS, 0, 0, payload)


def header_frames(stream: int, block: bytes, flags: int = 0) -> bytes:
    """A block of headers in as many frames as it takes."""
    pieces = [
        block[place : place + MAX_FRAME_BYTES]
        for place in range(0, max(len(block), 1), MAX_FRAME_BYTES)
    ]
    frames = []
    for index, piece in enumerate(pieces):
        last = END_HEADERS if index == len(pieces) - 1 else 0
        kind = CONTINUATION if index else HEADERS
        frames.append(frame(kind, last | (0 if index else flags), stream, piece))
    return b"".join(frames)


def header_block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as literals, which depend on none before and change nothing for those after."""
    return b"".join(
        b"".join((b"\0", _length(len(name)), name, _length(len(value)), value))
        for name, value in headers
    )


def _length(number: int) -> bytes:
    if number < 0x7F:
        return bytes((number,))
    number -= 0x7F
    found = bytearray(b"\x7f")
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)

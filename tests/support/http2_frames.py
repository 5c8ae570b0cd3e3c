"""HTTP/2's frames and header blocks, as a client writes them that no library would (RFC 9113)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION = 8, 9
END_STREAM, END_HEADERS, PADDED = 0x1, 0x4, 0x8
CANCEL = 8
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5
MAX_FRAME_BYTES = 16_384
_HEAD_BYTES = 9

Frame = tuple[int, int, int, bytes]  # kind, flags, stream, payload


class Splitter:
    """The frames in what comes from a server."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Those that are complete now."""
        self._rest += data
        while len(self._rest) >= _HEAD_BYTES:
            head, end = self._rest, _HEAD_BYTES + int.from_bytes(self._rest[:3], "big")
            if len(head) < end:
                return
            self._rest = head[end:]
            yield head[3], head[4], int.from_bytes(head[5:9], "big"), head[_HEAD_BYTES:end]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    head = (len(payload) << 40 | kind << 32 | flags << 24).to_bytes(8, "big")
    return b"".join((head[:5], stream.to_bytes(4, "big"), payload))


def rst_stream(stream: int, code: int) -> bytes:
    """A frame that ends a call."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def window_update(stream: int, increment: int) -> bytes:
    """A frame that lets the peer send so much more."""
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def settings_frame(settings: dict[int, int]) -> bytes:
    """A frame of settings."""
    payload = b"".join(struct.pack(">HI", name, value) for name, value in settings.items())
    return frame(SETTINGS, 0, 0, payload)


def header_frames(stream: int, block: bytes) -> bytes:
    """A block of headers in as many frames as it takes."""
    places = range(0, max(len(block), 1), MAX_FRAME_BYTES)
    return b"".join(
        frame(
            CONTINUATION if place else HEADERS,
            END_HEADERS if place == places[-1] else 0,
            *(stream, block[place : place + MAX_FRAME_BYTES]),
        )
        for place in places
    )


def header_block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as literals, which depend on none before and change nothing for those after."""
    encoder = hpack.Encoder()
    never_indexed = [hpack.NeverIndexedHeaderTuple(*header) for header in headers]
    return encoder.encode(never_indexed, huffman=False)

"""HTTP/2 at the gRPC port as no client of gRPC sends it, and floods of what one may send."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import hpack
import psutil
import pytest

from tests.support import http2_frames as h2
from tests.support.grpc_door import METHODS, Door, texts

HEADERS = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", f"{METHODS}ModelInfer".encode()),
    (b":authority", b"x"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]
SETTINGS = h2.settings_frame({})


class Client:
    """A socket, and the frames that come."""

    def __init__(self, server: Door) -> None:
        address = ("127.0.0.1", server.server.listen.grpc_port)
        self.socket = socket.create_connection(address, 10)
        self._splitter = h2.Splitter()
        self.send(h2.PREFACE + SETTINGS)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frames(self, seconds: float = 5.0) -> Iterator[h2.Frame]:
        """Until the connection ends, or nothing comes."""
        try:
            self.socket.settimeout(seconds)
            while data := self.socket.recv(1 << 16):
                yield from self._splitter.feed(data)
        except OSError:
            return

    def kinds(self) -> list[int]:
        """The kinds of the frames that come until the connection ends."""
        return [kind for kind, *_ in self.frames()]


def call(stream: int, request: bytes = texts(b"a").SerializeToString()) -> bytes:
    message = b"\0" + struct.pack(">I", len(request)) + request
    head = h2.header_frames(stream, h2.header_block(HEADERS))
    return head + h2.frame(h2.DATA, h2.END_STREAM, stream, message)


BROKEN = [
    h2.window_update(0, 2**31 - 1),
    h2.window_update(0, 0),
    h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 2**31}),
    h2.settings_frame({h2.MAX_FRAME_SIZE: 1}),
    b"\xff" * 100,
    h2.frame(h2.HEADERS, 0, 3) + h2.frame(h2.CONTINUATION, 0, 3) * 100,
    h2.frame(h2.HEADERS, 0, 3) + h2.frame(h2.DATA, 0, 3),
    h2.header_frames(3, h2.header_block([*HEADERS, (b":path", b"/x")])),
    h2.header_frames(3, h2.header_block([(b":authority", b"a"), *HEADERS])),
    h2.header_frames(3, h2.header_block([*HEADERS, (b"HF-Triton-Caller", b"x")])),
    h2.header_frames(3, h2.header_block([*HEADERS, (b"a", b"x" * 20_000)])),
    h2.header_frames(3, b"\xbf"),
    h2.header_frames(2, h2.header_block(HEADERS)),
    h2.frame(h2.DATA, h2.PADDED, 1, b"\xff"),
]


@pytest.mark.threat("http2", "doubled-headers")
@pytest.mark.parametrize("frames", BROKEN, ids=range(len(BROKEN)))
def test_what_breaks_the_protocol_is_not_answered_and_a_call_beside_it_is(
    server: Door, frames: bytes
) -> None:
    with Client(server) as client, contextlib.suppress(OSError):
        client.send(frames)
        assert h2.DATA not in [kind for kind, *_ in client.frames(0.3)]
    with Client(server) as client:
        client.send(call(1))
        ends = [kind for kind, _, stream, _ in client.frames(1.0) if stream == 1]
    assert ends == [h2.HEADERS, h2.DATA, h2.HEADERS]


@pytest.mark.threat("http2")
def test_floods_are_taken_or_end_their_connection(server: Door) -> None:
    resets = b"".join(
        call(stream) + h2.rst_stream(stream, h2.CANCEL) for stream in range(1, 20_001, 2)
    )
    flood = h2.frame(h2.PING, 0, 0, bytes(8)) * 50_000
    for data in (resets, flood, SETTINGS * 50_000, h2.window_update(0, 1) * 50_000):
        with Client(server) as client, contextlib.suppress(OSError):
            reading = threading.Thread(target=client.kinds, daemon=True)
            reading.start()
            client.send(data)
            server.check()
            client.socket.shutdown(socket.SHUT_RDWR)
        reading.join()
    server.check()


@pytest.mark.threat("http2")
def test_heads_that_take_long_to_read_hold_nobody_up(server: Door) -> None:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    block = encoder.encode([*HEADERS, (b"a", b"x" * 12_000)], huffman=True)
    done = threading.Event()

    def flood() -> None:
        with Client(server) as client, contextlib.suppress(OSError):
            threading.Thread(target=client.kinds, daemon=True).start()
            first = 1
            while not done.is_set():
                blocks = {
                    stream: block + h2.header_block([(b"b", str(stream).encode())])
                    for stream in range(first, first + 400, 2)
                }
                heads = [h2.header_frames(*head) for head in blocks.items()]
                client.send(b"".join(heads))
                first += 400
            client.socket.shutdown(socket.SHUT_RDWR)

    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    try:
        for _ in range(5):
            server.check()
    finally:
        done.set()
        for thread in threads:
            thread.join()


@pytest.mark.threat("http2")
def test_a_connection_has_a_limit_of_calls(server: Door) -> None:
    head, most = h2.header_block(HEADERS), 1024
    with Client(server) as client:
        for stream in range(1, 2 * most + 2, 2):
            client.send(h2.header_frames(stream, head))
        refused = [stream for kind, _, stream, _ in client.frames(1.0) if kind == h2.RST_STREAM]
    assert refused == [2 * most + 1]


@pytest.mark.threat("http2")
def test_who_does_not_read_fills_no_memory(server: Door) -> None:
    pid = server.proxy.pid
    before = psutil.Process(pid).memory_info().rss
    head = h2.header_block([*HEADERS[:2], (b":path", b"/none"), *HEADERS[3:]])
    with Client(server) as client, contextlib.suppress(TimeoutError):
        client.socket.settimeout(3)
        for first in range(1, 4_000_001, 400):
            streams = range(first, first + 400, 2)
            client.send(b"".join(h2.header_frames(stream, head) for stream in streams))
        pytest.fail("more was taken than a client may send that reads nothing")
    server.check()
    assert psutil.Process(pid).memory_info().rss - before < 64 << 20

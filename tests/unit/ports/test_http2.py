"""Frames at the gRPC port that no client of gRPC sends."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from hf_triton.ports.grpc import calls
from tests.support import http2_frames as h2
from tests.unit.ports.grpc_ports import Triton, grpc_port

HEADERS = [
    *((b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x")),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    *((b"te", b"trailers"), (b"content-type", b"application/grpc")),
]
REQUEST = service_pb2.ModelInferRequest(model_name="m").SerializeToString()
MESSAGE = b"\0" + struct.pack(">I", len(REQUEST)) + REQUEST
CALL = h2.header_frames(1, h2.header_block(HEADERS)) + h2.frame(h2.DATA, h2.END_STREAM, 1, MESSAGE)


async def kinds(triton: Triton, sent: bytes) -> list[int]:
    """Of the frames that come until the connection ends, or a call has."""
    host, _, port = triton.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    splitter, found = h2.Splitter(), list[int]()
    with contextlib.suppress(asyncio.TimeoutError):
        while found.count(h2.HEADERS) < 2 and (
            data := await asyncio.wait_for(reader.read(65536), 2)
        ):
            found += [kind for kind, *_ in splitter.feed(data)]
    writer.close()
    return found


@pytest.mark.threat("http2", "doubled-headers")
@pytest.mark.parametrize(
    "frames",
    [
        h2.window_update(0, 2**31 - 1),
        h2.window_update(0, 0),
        h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 2**31}),
        h2.settings_frame({h2.MAX_FRAME_SIZE: 1}),
        b"\xff" * 100,
        h2.frame(h2.HEADERS, 0, 3, b"") + b"".join([h2.frame(h2.CONTINUATION, 0, 3)] * 100),
        h2.frame(h2.HEADERS, 0, 3, b"") + h2.frame(h2.DATA, 0, 3),
        h2.header_frames(3, h2.header_block([*HEADERS, (b":path", b"/x")])),
        h2.header_frames(3, h2.header_block([(b":authority", b"a"), *HEADERS])),
        h2.header_frames(3, h2.header_block([*HEADERS, (b"HF-Triton-Caller", b"x")])),
        h2.header_frames(3, h2.header_block([*HEADERS, (b"a", b"x" * 20_000)])),
        h2.header_frames(3, b"\xbf"),
        h2.header_frames(2, h2.header_block(HEADERS)),
        h2.frame(h2.DATA, h2.PADDED, 1, b"\xff"),
    ],
    ids=range(14),
)
async def test_what_breaks_the_protocol_ends_its_own_connection_only(
    frames: bytes, tmp_path: Path
) -> None:
    begin = h2.PREFACE + h2.settings_frame({})
    async with grpc_port(tmp_path) as (triton, stub):
        assert h2.DATA not in await kinds(triton, begin + frames)
        assert h2.DATA in await kinds(triton, begin + CALL), "as it is, it is answered"
        assert await stub.ModelInfer(service_pb2.ModelInferRequest(model_name="m"))


@pytest.mark.threat("http2")
async def test_bytes_that_drip_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the beginning of the protocol comes."""
    monkeypatch.setattr(calls, "HANDSHAKE_MS", 100)
    async with grpc_port(tmp_path) as (triton, _):
        assert h2.DATA not in await kinds(triton, h2.PREFACE[:5]), "and it ends"

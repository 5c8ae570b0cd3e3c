"""Hostile HTTP: what a client may send, and the server and its neighbours after it. What the port
refuses by itself is tests/unit/ports's.
"""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.grpc_door import Door

MIB = 1 << 20
TEXT, NUMBER = "/v2/models/text/infer", "/v2/models/number/infer"
GENERATE = "/v2/models/text/generate"
INDEX = "/v2/repository/index"
FORM = "application/x-www-form-urlencoded"


def ask(server: Door, *pieces: bytes) -> tuple[int, bytes]:
    """Sends bytes as they are; the status and body of the first answer."""
    listen = server.server.listen
    with socket.create_connection(("127.0.0.1", listen.http_port), 60) as client:
        try:
            for piece in pieces:
                client.sendall(piece)
        except OSError:
            pass  # refused before all was sent
        return answer(client)


def answer(client: socket.socket) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(client)
    response.begin()
    return response.status, response.read()


def post(server: Door, path: str, body: bytes, *headers: str, kind: str = FORM) -> tuple[int, str]:
    lines = (f"POST {path} HTTP/1.1", "Host: x", f"Content-Type: {kind}", *headers)
    head = "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode()
    status, text = ask(server, head, body)
    return status, text.decode(errors="replace")


def request(name: str = "input", **changes: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [1], "data": ["x"], **changes}


def infer(*inputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": inputs or [request()], **more}).encode()


def test_what_is_not_hostile_is_answered(checked: Door) -> None:
    status, body = post(checked, TEXT, infer())
    assert status == 200
    assert json.loads(body)["outputs"][0]["data"] == ["x"]
    status, body = post(checked, GENERATE, b'{"input": "a form, says curl -d"}')
    assert status == 200
    numbers = request(datatype="INT32", shape=[3], data=[1, 3, 2])
    top = {"name": "output", "parameters": {"classification": 1}}
    status, body = post(checked, NUMBER, infer(numbers, outputs=[top]))
    assert status == 200
    assert json.loads(body)["outputs"][0]["data"] == ["3:1"]


NESTED = infer(request(data=0)).replace(b'"data": 0', b'"data": ' + b"[" * 10**6 + b"]" * 10**6)
CHUNKED = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.threat("http-ends-triton")
@pytest.mark.parametrize(
    "path, body",
    [
        (GENERATE, b"a" * 4_200_000),
        ("/nothing", b"a=b&" * 1_050_000),
        (GENERATE, b'{"input":' + b"[" * 62_000),
        ("/v2", b'{"input":' + b"[" * 62_000),
        (TEXT, NESTED),
    ],
    ids=range(5),
)
def test_a_body_that_would_overflow_tritons_stack_does_not(
    path: str, body: bytes, checked: Door
) -> None:
    assert post(checked, path, body)[0] in (400, 404, 405)


@pytest.mark.threat("http-ends-triton")
@pytest.mark.parametrize("path", [GENERATE, "/nothing"])
def test_half_a_million_chunks_are_one_body(path: str, checked: Door) -> None:
    chunks = b"1\r\na\r\n" * 500_000 + b"0\r\n\r\n"
    assert ask(checked, CHUNKED % path.encode(), chunks)[0] in (400, 404)


@pytest.mark.threat("http-ends-triton")
def test_a_compressed_body_is_bounded_once_it_is_unpacked(checked: Door) -> None:
    bomb = gzip.compress(b"\0" * 10_000_000)
    for coding in ("gzip", "DEFLATE", "br", "gzip, identity"):
        status, text = post(checked, TEXT, bomb, f"Content-Encoding: {coding}")
        assert status == (413 if coding in ("gzip", "DEFLATE") else 415), text


@pytest.mark.threat("http-ends-triton")
def test_more_than_64_mib_are_refused_and_leave_nothing(checked: Door) -> None:
    before = memory(checked)
    head = b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 419430400\r\n\r\n"
    assert ask(checked, head)[0] == 413
    pieces = [b"1000000\r\n" + b" " * 0x1000000 + b"\r\n"] * 5
    assert ask(checked, CHUNKED % b"/v2", *pieces)[0] == 413
    assert memory(checked) - before < 64 * MIB


def memory(server: Door) -> int:
    """Bytes that tritonserver and its models' processes have to themselves."""
    group = psutil.Process(server.server.pid).children(recursive=True)
    return sum(process.memory_full_info().uss for process in group)


@pytest.mark.parametrize("size", [2**60, -5, 3, "x", None])
def test_a_wrong_size_of_binary_data_is_refused(size: Any, checked: Door) -> None:
    tensor = {key: value for key, value in request().items() if key != "data"}
    head = infer({**tensor, "parameters": {"binary_data_size": size}})
    length = f"Inference-Header-Content-Length: {len(head)}"
    assert post(checked, TEXT, head + b"\1\0\0\0x", length)[0] == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KNOWN = st.sampled_from(
    ["inputs", "outputs", "parameters", "id", "input", "name", "shape", "datatype", "data"]
)


@pytest.mark.threat("http-ends-triton")
@given(
    path=st.sampled_from([TEXT, NUMBER, GENERATE, f"{GENERATE}_stream", INDEX]),
    body=st.dictionaries(KNOWN | st.text(max_size=5), JSON, max_size=6),
    tensor=st.dictionaries(KNOWN, JSON, max_size=4),
    tail=st.binary(max_size=8),
    head_length=st.none() | st.integers(-5, 200),
)
@settings(max_examples=60)
def test_whatever_is_sent_the_server_answers(
    server: Door, path: str, body: Any, tensor: Any, tail: bytes, head_length: int | None
) -> None:
    """A body of anything, and one that is nearly a request."""
    whole = {**body, "inputs": [{**request(), **tensor}], "outputs": [{**tensor, "name": "output"}]}
    length = () if head_length is None else (f"Inference-Header-Content-Length: {head_length}",)
    for value in (body, whole):
        status, _ = post(server, path, json.dumps(value).encode() + tail, *length)
        assert 200 <= status < 600
    server.check()


def test_after_all_of_it_no_memory_is_gone(server: Door) -> None:
    """As much again as before: what a first round left, a second one does not double."""
    bodies = [infer(request(data=["x" * MIB])), b'{"input": "' + b"x" * MIB + b'"}']
    seen = []
    for _ in range(3):
        for body in bodies * 40:
            assert post(server, TEXT if b"inputs" in body else GENERATE, body)[0] == 200
        seen.append(memory(server))
    assert seen[2] - seen[1] < 64 * MIB, seen

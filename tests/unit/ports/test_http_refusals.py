"""Refusals by the HTTP port: their time, and the connection after them."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from generator.models_yaml.server_settings import Limits, Tls
from hf_triton.ports.port import tls_context
from hf_triton.ports.refusal import HTTP_ADMIN_HEADER
from hf_triton.ports.settings import MIB, Access, Caller
from tests.unit.ports.http_ports import GENERATE, Message, open_port

KEY = "a-key-of-alice-123"
KEYED = Access(callers=(Caller("alice", KEY),), max_body_mib=1)
BEARER = f"Authorization: Bearer {KEY}\r\n"
GET = b"GET /v2 HTTP/1.1\r\nHost: a\r\n"
POST = f"POST {GENERATE} HTTP/1.1\r\nHost: a\r\n"
LARGE = MIB + 1

REFUSED = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01", 400, "not an HTTP request"),
    "no path": (b"GET ftp://other/v2 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not a path"),
    "no host": (b"GET /v2 HTTP/1.1\r\n\r\n", 400, "no Host"),
    "no host beside a target's": (b"GET http://a/v2 HTTP/1.1\r\n\r\n", 400, "no Host"),
    "two hosts": (GET + b"host: a\r\n\r\n", 400, "host twice"),
    "two in one": (b"GET /v2 HTTP/1.1\r\nHost: a, b\r\n\r\n", 400, "got a host"),
    "a host with a path": (b"GET /v2 HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "got a host"),
    "a host with a user": (b"GET http://a@b/v2 HTTP/1.1\r\nHost: b\r\n\r\n", 400, "got a host"),
    "a wrong host beside a target's": (
        b"GET http://a/v2 HTTP/1.1\r\nHost: a@b\r\n\r\n",
        *(400, "got a host"),
    ),
    **{
        f"two {name}": (f"{POST}{name}: 1\r\n{name.title()}: 1\r\n\r\n".encode(), 400, "twice")
        for name in ("content-type", "inference-header-content-length", HTTP_ADMIN_HEADER)
    },
    "asterisk": (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not a path"),
    "two lengths": (f"{POST}Content-Length: 1\r\nContent-Length: 1\r\n\r\n".encode(), 400, ""),
    "a length and chunks": (
        f"{POST}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n".encode(),
        *(400, "Transfer-Encoding"),
    ),
    **{
        f"encoding {name}": (
            f"{POST}Transfer-Encoding: {name}\r\n\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\n".encode(),
            *(400, "Encoding"),
        )
        for name in ("chunked, identity", "xchunked")
    },
    "a length with a sign": (f"{POST}Content-Length: +5\r\n\r\n".encode(), 400, ""),
    "no chunk": (f"{POST}Transfer-Encoding: chunked\r\n\r\n-1\r\n".encode(), 400, "chunk"),
    "other encoding": (f"{POST}Transfer-Encoding: gzip\r\n\r\n".encode(), 400, "Encoding"),
    "folded": (GET + b"A: b\r\n c: d\r\n\r\n", 400, "whitespace"),
    "two keys": (GET + b"Authorization: a\r\nAuthorization: b\r\n\r\n", 400, "twice"),
    "two origins": (GET + b"Origin: a\r\norigin: b\r\n\r\n", 400, "origin twice"),
    "method": (b"DELETE /v2 HTTP/1.1\r\nHost: a\r\n\r\n", 405, "allowed: GET, POST"),
    "tunnel": (
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\nGET /v2 HTTP/1.1\r\nHost: a\r\n\r\n",
        400,
        "not a path",
    ),
    "preflight where no page may ask": (
        b"OPTIONS /v2 HTTP/1.1\r\nHost: a\r\nOrigin: a\r\n\r\n",
        405,
        "OPTI",
    ),
    "large": (f"{POST}Content-Length: {65 * MIB}\r\n\r\n".encode(), 413, "allowed: 64 MiB"),
    "large, asks": (
        f"{POST}Content-Length: {65 * MIB}\r\nExpect: 100-continue\r\n\r\n".encode(),
        *(413, "max_body_mib"),
    ),
    "target": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, "8192 bytes"),
    "compressed": (f"{POST}Content-Encoding: br\r\n\r\n".encode(), 415, "allowed: gzip, deflate"),
    "two codings": (f"{POST}Content-Encoding: gzip, gzip\r\n\r\n".encode(), 415, "allowed: gzip"),
    "expects": (f"{POST}Expect: miracles\r\n\r\n".encode(), 417, "100-continue"),
    "many headers": (GET + b"" + b"a: b\r\n" * 1000 + b"\r\n", 431, "256 headers"),
    "long header": (GET + b"a: " + b"b" * 70_000 + b"\r\n\r\n", 431, "65536 bytes"),
    "endless header": (GET + b"a: " + b"b" * 400_000, 431, "65536 bytes"),
    "endless trailer": (
        f"{POST}Transfer-Encoding: chunked\r\n\r\n0\r\na: ".encode() + b"b" * 400_000,
        *(431, "65536 bytes"),
    ),
    "endless extension": (
        f"{POST}Transfer-Encoding: chunked\r\n\r\n1;a=".encode() + b"b" * 400_000,
        *(431, "65536 bytes"),
    ),
    "blank lines": (b"\r\n" * 200_000, 431, "65536 bytes"),
    "HTTP/2": (b"GET /v2 HTTP/2.0\r\n\r\n", 505, "allowed: HTTP/1.1"),
    "a stream over HTTP/1.0": (
        b"POST /v2/models/m/generate_stream HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
        *(505, "needs HTTP/1.1"),
    ),
    "HTTP/0.9": (b"GET /v2\r\n\r\n", 505, "allowed: HTTP/1.1"),
}


@pytest.mark.threat("doubled-headers", "http-bodies")
@pytest.mark.parametrize("sent, status, text", REFUSED.values(), ids=REFUSED)
async def test_what_is_refused_before_its_body_ends_the_connection(
    sent: bytes, status: int, text: str
) -> None:
    async with open_port() as port:
        client = await port.client()
        client.send(sent)
        got = await client.answer()
        assert (got.status, got.headers["connection"]) == (status, "close")
        assert text in got.error
        assert await client.is_closed()
        assert port.triton.asked == []


@pytest.mark.parametrize("body", [b"[" * 62_000, b"{", b"", b"\xff", b'"text"'])
async def test_after_a_wrong_body_the_connection_goes_on(body: bytes) -> None:
    async with open_port() as port:
        client = await port.client()
        client.post("/v2/models/m/infer", body)
        got = await client.answer()
        assert (got.status, got.headers["connection"]) == (400, "keep-alive")
        assert got.error.startswith("the body: ")
        for length in ("9", "-1", "1e3", "9" * 30):
            header = f"Inference-Header-Content-Length: {length}\r\n"
            client.post("/v2/models/m/infer", b"{}", header)
            got = await client.answer()
            assert (got.status, f"got {length}, of 2 bytes" in got.error) == (400, True)
        client.get("/v2")
        assert (await client.answer()).status == 200
        assert len(port.triton.asked) == 1


async def test_chunks_are_counted() -> None:
    async with open_port(Access(max_body_mib=1)) as port:
        client = await port.client()
        client.send(f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode())
        client.send(b"%x\r\n%s\r\n0\r\n\r\n" % (LARGE, b" " * LARGE))
        got = await client.answer()
        assert (got.status, got.headers["connection"]) == (413, "close")
        assert await client.is_closed()


async def test_a_body_comes_when_it_is_told_to() -> None:
    async with open_port() as port:
        client = await port.client()
        client.get("/first")
        client.send(f"{POST}Content-Length: 2\r\nExpect: 100-continue\r\n\r\n".encode())
        assert (await client.answer()).json[0] == "GET /first HTTP/1.1"
        for _ in range(2):
            line = await client.reader.readuntil(b"\r\n\r\n")
            assert line == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(b"{}")
            assert (await client.answer()).json[1] == "{}"
            client.send(f"{POST}Content-Length: 2\r\nExpect: 100-continue\r\n\r\n".encode())
        assert "expect" not in port.triton.asked[1].headers


async def test_all_but_health_needs_a_key() -> None:
    async with open_port(KEYED) as port:
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert (
                await port.ask(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            ).status == 200
        for request in (
            "GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /v2/health/live/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET //v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n",
            f"POST /v2/health/live HTTP/1.1\r\nHost: a\r\nContent-Length: {MIB}\r\n\r\n",
            f"{POST}Content-Length: {MIB}\r\n\r\n",
            f"GET /v2 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}x\r\n\r\n",
        ):
            got = await port.ask(request.encode())
            assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer")
            assert KEY not in got.error
        assert (await port.post(GENERATE, b"{}", BEARER)).status == 200
        asked = port.triton.asked[-1]
        assert "authorization" not in asked.headers
        assert KEYED.callers[0].alias in asked.body.decode()
        assert len(port.triton.asked) == 3


async def test_bodies_that_nobody_reads_take_no_room() -> None:
    async with open_port(KEYED) as port:
        client = await port.client()
        client.send(
            f"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nContent-Length: {MIB}\r\n\r\n".encode()
        )
        client.send(b" " * (MIB - 1))
        await port.pass_time(0)
        assert port.proxy.bodies.num_bytes == 0
        client.send(b" ")
        assert (await client.answer()).status == 200
        assert port.triton.asked[0].body == b""


async def test_one_too_many_is_refused_and_costs_nothing_for_good() -> None:
    access = Access(limits=Limits(requests_per_minute=1))
    async with open_port(access) as port:
        client = await port.client()
        for status in (200, 429, 429):
            client.post(GENERATE, b"{}")
            got = await client.answer()
            assert (got.status, got.headers.get("connection", "keep-alive")) == (
                *(status, "keep-alive"),
            )
            assert got.headers["x-ratelimit-limit-requests"] == "1"
            assert got.headers["x-ratelimit-remaining-requests"] == "0"
        assert 0 < int(got.headers["retry-after"]) <= 60
        assert port.proxy.bodies.num_bytes == 0
        client.get("/v2/health/live")
        got = await client.answer()
        assert (got.status, "x-ratelimit-limit-requests" in got.headers) == (200, False)


async def test_a_page_asks_first_and_reads_then() -> None:
    access = Access(callers=KEYED.callers, cors=("http://page",))
    async with open_port(access) as port:
        client = await port.client()
        ask = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: X-My\r\n"
        client.send(
            f"OPTIONS {GENERATE} HTTP/1.1\r\nHost: a\r\nOrigin: http://page\r\n{ask}"
            "Content-Length: 4\r\n\r\nbody".encode()
        )
        got = await client.answer()
        assert got.status == 204
        assert "content-length" not in got.headers
        assert got.headers["access-control-allow-origin"] == "http://page"
        assert got.headers["access-control-allow-headers"] == "X-My"
        client.post(GENERATE, b"{}", f"{BEARER}Origin: http://page\r\n")
        got = await client.answer()
        assert (got.status, got.headers["vary"]) == (200, "Origin")
        client.get("/v2", "Origin: http://page\r\n")
        got = await client.answer()
        assert (got.status, got.headers["access-control-allow-origin"]) == (401, "http://page")
        got = await port.ask(
            f"GET /v2 HTTP/1.1\r\nHost: a\r\n{BEARER}Origin: http://other\r\n\r\n".encode()
        )
        assert "access-control-allow-origin" not in got.headers
        assert got.headers["vary"] == "Origin", "the answer to another would differ"
        got = await port.ask(b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (got.status, got.headers["vary"]) == (401, "Origin")


@pytest.mark.threat("slow-http-clients")
@pytest.mark.parametrize(
    "sent, seconds, status",
    [
        (b"", 11, None),
        (b"GET /v2 HT", 11, 408),
        (f"{POST}Content-Length: 9\r\n\r\n1234".encode(), 31, 408),
        (f"{POST}Transfer-Encoding: chunked\r\n\r\n1".encode(), 31, 408),
    ],
)
async def test_what_does_not_come_in_time_is_ended(
    sent: bytes, seconds: float, status: int | None
) -> None:
    async with open_port() as port:
        client = await port.client()
        client.send(sent)
        await port.pass_time(seconds - 2)
        assert len(port.proxy.connections) == 1
        await port.pass_time(2)
        if status:
            got = await client.answer()
            assert (got.status, got.headers["connection"]) == (status, "close")
        assert await client.is_closed()
        assert port.triton.asked == []


@pytest.mark.threat("slow-http-clients")
async def test_a_body_that_trickles_is_ended_too() -> None:
    async with open_port() as port:
        client = await port.client()
        client.send(f"{POST}Content-Length: 99\r\n\r\n".encode())
        for _ in range(24):
            client.send(b" ")
            await port.pass_time(25)
        client.send(b" ")
        await port.pass_time(25)
        assert (await client.answer()).status == 408


async def test_an_idle_connection_ends_and_one_that_waits_does_not() -> None:
    async def never(_request: Message, _writer: object) -> None:
        return

    async with open_port() as port:
        idle, waits = await port.client(), await port.client()
        idle.get("/v2")
        assert (await idle.answer()).status == 200
        port.triton.script = never
        waits.get("/v2")
        await port.until(lambda: len(port.triton.asked) == 2)
        await port.pass_time(299)
        assert len(port.proxy.connections) == 2
        await port.pass_time(2)
        assert await idle.is_closed()
        await port.pass_time(10_000)
        assert len(port.proxy.connections) == 1


async def test_the_port_speaks_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with open_port(tls=tls_context(Tls(str(certificate), str(key)))) as port:
        plain = await port.client()
        plain.get("/v2")
        assert b"HTTP" not in await plain.rest()
        client = await port.client(trusting)
        client.post(GENERATE, b'{"text_input":"%s"}' % (b"x" * 300_000))
        assert len((await client.answer()).json[1]) > 300_000
        client.send(b"DELETE /v2 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer()).status == 405
        await port.pass_time(6)
        assert await client.is_closed()


async def test_a_key_of_ones_own_for_tritonserver_passes_where_none_is_ours() -> None:
    async with open_port() as port:
        await port.ask(f"GET /v2 HTTP/1.1\r\nHost: a\r\n{BEARER}\r\n".encode())
        assert port.triton.asked[0].headers["authorization"] == f"Bearer {KEY}"

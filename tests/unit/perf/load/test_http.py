"""Streamed responses are read as they come from the wire, in whatever pieces that is."""

from __future__ import annotations

import asyncio

import pytest

from perf.load.http import Connection, Response

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
REFUSED = b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 16\r\n\r\n{"error":"full"}'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def stream(*texts: str) -> bytes:
    events = (chunk(f"data: {text}\n\n".encode()) for text in texts)
    return HEAD + b"".join(events) + chunk(b"")


def received(*pieces: bytes) -> Response:
    """Piece number n comes at second n."""
    response = Response()
    for second, piece in enumerate(pieces):
        assert not response.is_complete
        response.add(piece, float(second))
    return response


def test_an_event_comes_when_its_last_byte_does() -> None:
    whole = stream("a", "b", "c")
    first, second = whole.index(b"data: a") + 9, whole.index(b"data: b") + 3
    response = received(whole[:first], whole[first:second], whole[second:])
    assert response.is_complete
    assert list(response.events()) == [(b"a", 0.0), (b"b", 2.0), (b"c", 2.0)]
    assert response.status == 200


def test_any_pieces_give_the_same_events() -> None:
    whole = stream("a", "0", "\\r\\n0\\r\\n", "b")
    bytewise = received(*(whole[i : i + 1] for i in range(len(whole))))
    expected = [b"a", b"0", b"\\r\\n0\\r\\n", b"b"]
    assert [event for event, _ in bytewise.events()] == expected
    assert [event for event, _ in received(whole).events()] == expected


def test_an_event_may_come_in_two_chunks_and_two_events_in_one() -> None:
    whole = HEAD + chunk(b"data: a") + chunk(b"b\n\ndata: c\n\n") + chunk(b"")
    assert [event for event, _ in received(whole).events()] == [b"ab", b"c"]


def test_a_response_of_stated_length_is_complete_with_its_last_byte() -> None:
    response = received(REFUSED[:10], REFUSED[10:-1], REFUSED[-1:])
    assert response.is_complete
    assert (response.status, response.body()) == (503, b'{"error":"full"}')


def test_the_body_of_chunks_is_put_together() -> None:
    assert received(stream("a", "b")).body() == b"data: a\n\ndata: b\n\n"


async def post_to(answers: list[bytes]) -> list[Response]:
    """Answers of a server that sends these and then closes, all over one connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\n")
            for begin in range(0, len(answer), 40):
                writer.write(answer[begin : begin + 40])
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()
        transport, connection = await asyncio.get_running_loop().create_connection(
            Connection, *address[:2]
        )
        try:
            return [await connection.post(b"hello\n") for _ in range(2)]
        finally:
            transport.close()


def test_one_connection_takes_one_response_after_the_other() -> None:
    first, second = asyncio.run(post_to([stream("a", "b"), REFUSED]))
    assert [event for event, _ in first.events()] == [b"a", b"b"]
    assert second.status == 503


def test_a_server_that_closes_early_is_a_connection_error() -> None:
    with pytest.raises(ConnectionError):
        asyncio.run(post_to([stream("a"), stream("b")[:-3]]))

"""Clients that leave, and a translator that is stopped."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.support.triton import eventually
from tests.unit.openai_api.conftest import Starter, Translator


def connect(api: Translator, **body: object) -> socket.socket:
    """A request that was sent, and not answered yet."""
    host, port = address_of(api)
    connection = socket.create_connection((host, port), timeout=60)
    data = json.dumps({"model": "echo", **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def address_of(api: Translator) -> tuple[str, int]:
    host, port = api.url.removeprefix("http://").split(":")
    return host, int(port)


@pytest.mark.threat("left-grpc-calls")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["echo", "whole"])
def test_a_client_that_leaves_cancels_nothing_at_a_triton_of_this_machine(
    model: str, stream: bool, api: Translator, starter: Starter
) -> None:
    """It could die of them: the model is told instead."""
    prompts = ["a !waits", "b !waits"]
    with connect(api, model=model, prompt=prompts, stream=stream):
        assert eventually(lambda: api.triton.num_waiting == 2)
        assert not api.triton.left
    assert eventually(lambda: sorted(api.triton.left) == prompts)
    files = Path(starter.folder.name)
    assert eventually(lambda: not list(files.glob("left_*"))), "each was read to its end"
    assert not api.triton.cancelled
    assert api.completion(model=model).status == 200


def test_stopping_waits_for_the_ends_of_what_was_left(api: Translator, starter: Starter) -> None:
    with connect(api, prompt="a !waits", stream=True):
        assert eventually(lambda: api.triton.num_waiting == 1)
    starter.end_last()
    assert (api.triton.left, api.triton.cancelled) == (["a !waits"], [])


def test_stopping_accepts_nothing_more_and_lets_what_runs_end(api: Translator) -> None:
    connection = connect(api, prompt="a b !waits", stream=True)
    read_until(connection, b" b")
    assert eventually(lambda: api.triton.num_waiting == 1)
    api.loop.call_soon_threadsafe(api.stop.set)

    def refused() -> bool:
        try:
            socket.create_connection(address_of(api), timeout=60).close()
        except ConnectionError:
            return True
        return False

    assert eventually(refused)
    assert api.triton.num_waiting == 1, "the stream goes on"
    connection.close()
    assert eventually(lambda: api.triton.num_waiting == 0)


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    found = b""
    while mark not in found:
        more = connection.recv(65536)
        assert more, found
        found += more
    return found

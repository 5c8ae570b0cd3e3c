"""Clients that leave, and a translator that is stopped."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from tests.openai_api.conftest import Reply, Starter, Translator
from tests.support.triton import eventually


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["echo", "whole"])
def test_a_client_that_leaves_is_cancelled_at_triton(
    model: str, stream: bool, api: Translator
) -> None:
    prompt = "a !waits"
    with connect(api, model=model, prompt=prompt, stream=stream):
        assert eventually(lambda: api.triton.num_waiting == 1)
        assert not api.triton.cancelled
    assert eventually(lambda: api.triton.cancelled == [prompt])


@pytest.fixture
def here(starter: Starter, tmp_path: Path) -> Translator:
    """In front of a fake that is told by files who has left."""
    fake, port = starter.triton()
    fake.left_calls = f"{tmp_path}/left_"
    return starter.translator(fake, f"127.0.0.1:{port}", left_calls=fake.left_calls)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["echo", "whole"])
def test_a_client_that_leaves_cancels_nothing_at_a_triton_of_this_machine(
    model: str, stream: bool, here: Translator, tmp_path: Path
) -> None:
    """Before 25.06 it dies of calls that are cancelled as they end: the model is told instead."""
    prompts = ["a !waits", "b !waits"]
    with connect(here, model=model, prompt=prompts, stream=stream):
        assert eventually(lambda: here.triton.num_waiting == 2)
        assert not here.triton.left
    assert eventually(lambda: sorted(here.triton.left) == prompts)
    assert eventually(lambda: not list(tmp_path.iterdir())), "each was read to its end"
    assert not here.triton.cancelled
    assert here.completion(model=model).status == 200


def test_stopping_waits_for_the_ends_of_what_was_left(here: Translator, starter: Starter) -> None:
    with connect(here, prompt="a !waits", stream=True):
        assert eventually(lambda: here.triton.num_waiting == 1)
    starter.end_last()
    assert (here.triton.left, here.triton.cancelled) == (["a !waits"], [])


def test_a_client_that_leaves_cancels_all_its_prompts(api: Translator) -> None:
    prompts = [f"{n} !waits" for n in range(3)]
    with connect(api, prompt=prompts, stream=True):
        assert eventually(lambda: api.triton.num_waiting == 3)
    assert eventually(lambda: sorted(api.triton.cancelled) == prompts)


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


def test_requests_run_side_by_side(api: Translator) -> None:
    replies: list[Reply] = []
    waiting = [connect(api, prompt="a !waits") for _ in range(50)]
    assert eventually(lambda: api.triton.num_waiting == 50)
    threads = [
        threading.Thread(target=lambda: replies.append(api.completion(stream=True)))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply.status for reply in replies] == [200] * 20
    for connection in waiting:
        connection.close()

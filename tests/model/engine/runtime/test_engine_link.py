"""The link between fronts and engines: addresses, requests, and what a bad peer can do."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hf_triton.runtime.link import frames, protocol
from hf_triton.runtime.link.frames import Connection, Frame, encode_request
from hf_triton.runtime.link.listener import EngineListener
from hf_triton.runtime.request.request import Request
from tests.support.intake_driver import Caller
from tests.support.triton import eventually


@pytest.fixture(autouse=True)
def identity(own_link: str) -> str:
    return own_link


@pytest.fixture
def taken() -> list[Request]:
    return []


@pytest.fixture
def listener(taken: list[Request]) -> Iterator[EngineListener]:
    listener = EngineListener("m_stream", taken.append)
    yield listener
    listener.close()


class Peer:
    """A front, frame by frame."""

    def __init__(self, identity: str) -> None:
        (address,) = protocol.find_addresses(identity, "m_stream")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(60)
        self.socket.connect(f"\0{address}")
        self._stream = self.socket.makefile("rb")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self.socket.close()

    def send(self, frame: Frame) -> None:
        self.socket.sendall(frames.encode(frame))

    def ask(self, number: int, **inputs: Any) -> None:
        request = Request(inputs, {}, Caller(), ["text_output"])
        self.socket.sendall(encode_request(request, number))

    def read(self) -> Frame:
        frame = frames.read_frame(self._stream)
        assert frame is not None, "the engine hung up"
        return frame

    def is_hung_up_on(self) -> bool:
        try:
            return frames.read_frame(self._stream) is None
        except ConnectionError:
            return True


def ask(peer: Peer, taken: list[Request], *numbers: int) -> None:
    """Asks, and waits until the engine has taken the requests."""
    expected = len(taken) + len(numbers)
    for number in numbers:
        peer.ask(number)
    assert eventually(lambda: len(taken) == expected)


def test_an_address_fits_and_is_found_whatever_the_models_name(identity: str) -> None:
    names = ["m", "m_stream", "m-1", "x" * 200, "ü"]
    listeners = [EngineListener(name, lambda _: None) for name in names]
    try:
        for name in names:
            (address,) = protocol.find_addresses(identity, name)
            assert len(address) < 108
        assert protocol.find_addresses(f"{identity}0", "m") == []
        assert protocol.find_addresses(identity, "n") == []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(protocol, "VERSION", protocol.VERSION + 1)  # another release's
            assert protocol.find_addresses(identity, "m") == []
    finally:
        for listener in listeners:
            listener.close()
    assert [protocol.find_addresses(identity, name) for name in names] == [[]] * 5


def test_the_servers_identity_is_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    first = protocol.server_identity()
    assert first == protocol.server_identity()
    assert first.split("-")[1] == str(os.getppid())
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert protocol.server_identity() != first


def test_an_answer_too_large_is_an_error(
    listener: EngineListener,
    taken: list[Request],
    identity: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Peer(identity) as peer:
        ask(peer, taken, 1)
        monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 300)
        taken[0].responder.send({"x": np.zeros(400)}, final=True)
        error = peer.read()
    status, text = error.texts
    assert status == "INTERNAL"
    assert "allowed: at most 300" in text


def test_a_cancelled_request_is_seen_so_and_gets_no_more_answers(
    listener: EngineListener, taken: list[Request], identity: str
) -> None:
    with Peer(identity) as peer:
        ask(peer, taken, 1, 2)
        taken[0].responder.send({}, final=False)
        assert peer.read().number == 1
        peer.send(Frame(frames.CANCEL, 1))
        peer.send(Frame(frames.CANCEL, 99))
        assert eventually(taken[0].responder.is_cancelled)
        assert not taken[1].responder.is_cancelled()
        taken[0].responder.send({}, final=False)
        for request in taken:
            request.responder.send({}, final=True)
        assert peer.read().number == 2


def test_the_requests_of_a_front_that_vanishes_count_as_cancelled(
    listener: EngineListener, taken: list[Request], identity: str
) -> None:
    with Peer(identity) as other:
        with Peer(identity) as peer:
            ask(peer, taken, 1)
        ask(other, taken, 1)
        assert eventually(taken[0].responder.is_cancelled)
        assert not taken[1].responder.is_cancelled()
        for request in taken:
            request.responder.send({}, final=True)
        assert other.read().number == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: engine\r\n\r\n",
        frames.SIZE.pack(1) + b"x",
        frames.encode(Frame(99, 1)),
        frames.encode(Frame(frames.REQUEST, 1)),
    ],
)
def test_garbage_ends_its_own_connection_only(
    garbage: bytes,
    listener: EngineListener,
    taken: list[Request],
    identity: str,
    log_lines: list[str],
) -> None:
    with Peer(identity) as peer, Peer(identity) as bad:
        bad.socket.sendall(garbage)
        assert bad.is_hung_up_on()
        assert eventually(lambda: len(log_lines) == 1)
        assert log_lines[0].startswith("W a caller's connection was ended: ")
        ask(peer, taken, 1)


@pytest.mark.threat("link-socket")
def test_another_users_process_is_refused(
    listener: EngineListener,
    identity: str,
    monkeypatch: pytest.MonkeyPatch,
    log_lines: list[str],
) -> None:
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    (address,) = protocol.find_addresses(identity, "m_stream")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(60)
        other.connect(f"\0{address}")
        assert other.recv(1) == b""
    wanted = f"W a connection to the engine was refused: peer is of user {uid}, allowed: {uid + 1}"
    assert eventually(lambda: wanted in log_lines)


def test_a_handler_that_raises_costs_one_request(identity: str, log_lines: list[str]) -> None:
    taken: list[Request] = []

    def handle(request: Request) -> None:
        taken.append(request)
        if len(taken) == 1:
            raise RuntimeError("quoting a prompt")

    listener = EngineListener("m_stream", handle)
    with Peer(identity) as peer:
        peer.ask(1)
        assert peer.read().texts == ["INTERNAL", "internal error: RuntimeError"]
        ask(peer, taken, 2)
        taken[1].responder.send({}, final=True)
        assert peer.read().number == 2
    listener.close()
    assert not any("prompt" in line for line in log_lines)


@pytest.mark.parametrize("final", [False, True])
def test_an_answer_that_the_link_can_not_carry_costs_one_request(
    identity: str, *, final: bool
) -> None:
    def handle(request: Request) -> None:
        request.responder.send({"x": np.array(["a text"])}, final=final)

    listener = EngineListener("m_stream", handle)
    with Peer(identity) as peer:
        peer.ask(1)
        assert peer.read().texts == ["INTERNAL", "internal error: KeyError"]
    listener.close()


def test_closing_sends_the_last_answers_and_leaves_no_thread(identity: str) -> None:
    taken: list[Request] = []
    listener = EngineListener("m_stream", taken.append)
    with Peer(identity) as peer:
        for number in range(200):
            peer.ask(number)
        assert eventually(lambda: len(taken) == 200)
        for request in taken:
            request.responder.send({"x": np.zeros(5)}, final=True)
        listener.close()
        listener.close()
        found = [peer.read() for _ in range(201)]
        answers = [frame for frame in found if frame.kind != frames.DRAIN]
        assert [frame.number for frame in answers] == list(range(200))
        assert peer.is_hung_up_on()


@pytest.mark.threat("link-socket")
def test_a_peer_that_stops_reading_is_hung_up_on_instead_of_filling_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hf_triton.runtime.link.frames.MAX_QUEUED_BYTES", 100_000)
    ours, theirs = socket.socketpair()
    ended = threading.Event()
    connection = Connection(ours)
    monkeypatch.setattr(connection, "on_end", lambda _: ended.set())
    connection.start()
    with theirs:
        sent = [connection.send(b"x" * 10_000) for _ in range(1000)]
        assert not all(sent)
        assert ended.wait(60)
    connection.close()

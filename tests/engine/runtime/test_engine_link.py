"""The link between fronts and engines: addresses, frames, and what a bad peer can do."""

from __future__ import annotations

import io
import itertools
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hf_runtime.link import protocol
from hf_runtime.link.connection import Connection
from hf_runtime.link.listener import EngineListener, ForwardedRequest
from hf_runtime.link.protocol import FrameTooLargeError, LinkError

from tests.engine.driving import no_thread_left
from tests.support.triton import eventually

_identities = itertools.count()


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch, patient_link: None) -> str:
    """A server of this test's own."""
    name = f"test-{os.getpid()}-link{next(_identities)}"
    monkeypatch.setattr(protocol, "server_identity", lambda: name)
    return name


@pytest.fixture
def taken() -> list[ForwardedRequest]:
    return []


@pytest.fixture
def listener(taken: list[ForwardedRequest]) -> Iterator[EngineListener]:
    listener = EngineListener("m_stream", taken.append)
    yield listener
    listener.close()


class Peer:
    """A front, frame by frame."""

    def __init__(self, identity: str, *, says_hello: bool = True) -> None:
        (address,) = protocol.find_addresses(identity, "m_stream")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(60)
        self.socket.connect(f"\0{address}")
        self._stream = self.socket.makefile("rb")
        protocol.check_hello(self.read())
        if says_hello:
            self.send(protocol.hello())

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self.socket.close()

    def send(self, frame: dict[str, Any]) -> None:
        self.socket.sendall(protocol.encode(frame))

    def ask(self, number: int, **inputs: Any) -> None:
        packed = {name: protocol.pack_tensor(array) for name, array in inputs.items()}
        frame = {"inputs": packed, "parameters": "{}", "outputs": ["text_output"]}
        more = {"request_id": "", "may_stream": False, "is_routed": False}
        self.send({"kind": "request", "id": number, **frame, **more})

    def read(self) -> dict[str, Any]:
        frame = protocol.read_frame(self._stream)
        assert frame is not None, "the engine hung up"
        return frame

    def is_hung_up_on(self) -> bool:
        try:
            return protocol.read_frame(self._stream) is None
        except ConnectionError:
            return True


@pytest.mark.parametrize(
    "array",
    [
        np.array([True, False]),
        *(
            np.array([np.iinfo(t).min, np.iinfo(t).max], dtype=t)
            for t in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
        ),
        np.array([0.1, -65504, 6e-8, np.inf, -np.inf, np.nan, -0.0], dtype=np.float16),
        np.array([0.1, 3.4e38, 1e-45, np.inf, -np.inf, np.nan, -0.0], dtype=np.float32),
        np.array([0.1, 1.7e308, 5e-324, np.inf, -np.inf, np.nan, -0.0], dtype=np.float64),
        np.array([[1, 2, 3], [4, 5, 6]], dtype=np.int32).T,
        np.array([], dtype=np.float32),
        np.empty((2, 0), dtype=np.int64),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_tensors_travel_bit_for_bit(array: Any) -> None:
    got = _round_trip(array)
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()


def test_bytes_of_any_value_travel_unchanged() -> None:
    array = np.array([[bytes(range(256)), b""], ["ü€😀".encode(), b"\0\0"]], dtype=np.object_)
    assert _round_trip(array).tolist() == array.tolist()
    texts = np.array(["ü€😀"], dtype=np.object_)
    assert _round_trip(texts).tolist() == ["ü€😀".encode()]
    assert _round_trip(np.array([], dtype=np.object_)).shape == (0,)


def test_a_file_travels_at_its_own_size() -> None:
    file = np.array([bytes(range(256)) * 100], dtype=np.object_)
    assert len(protocol.encode({"tensor": protocol.pack_tensor(file)})) < 25_700


def _round_trip(array: Any) -> Any:
    data = protocol.encode({"tensor": protocol.pack_tensor(array)})
    frame = protocol.read_frame(io.BytesIO(data))
    assert frame is not None
    return protocol.unpack_tensor(frame["tensor"])


@pytest.mark.parametrize(
    "packed",
    [
        None,
        [],
        {"dtype": "int32", "shape": [1]},
        {"dtype": "object", "shape": [1], "data": [1]},
        {"dtype": "int32", "shape": [3], "data": [1]},
        {"dtype": "int32", "shape": [1], "data": ["x"]},
        {"dtype": "int32", "shape": [1], "data": [[1], [1, 2]]},
        {"dtype": "bytes", "shape": [1], "data": [1]},
        {"dtype": "bytes", "shape": [1], "data": ["€"]},
        {"dtype": ["bytes"], "shape": [1], "data": ["x"]},
        {"dtype": "int32", "shape": "x", "data": [1]},
    ],
)
def test_a_broken_tensor_is_an_error_of_the_link(packed: Any) -> None:
    with pytest.raises(LinkError):
        protocol.unpack_tensor(packed)


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        struct.pack("!II", 0, 0),
        struct.pack("!II", 9, 9) + b"{}",
        struct.pack("!II", 9, 2) + b"{}",
        struct.pack("!II", 2, 3) + b"{} ",
        b"\xff\xff\xff\xff" * 2,
        struct.pack("!II", 2, 2) + b"xx",
        struct.pack("!II", 2, 2) + b"[]",
        struct.pack("!II", 17, 17) + b'{"dtype":"bytes"}',
        struct.pack("!II", 100_000, 100_000) + b"[" * 100_000,
    ],
    ids=[
        *("torn head", "empty", "torn body", "torn bytes", "more JSON than all", "too large"),
        *("no JSON", "no object", "bytes without lengths", "too deep"),
    ],
)
def test_a_broken_frame_is_an_error_of_the_link(data: bytes) -> None:
    with pytest.raises(LinkError):
        protocol.read_frame(io.BytesIO(data))


def test_a_frame_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 100)
    with pytest.raises(FrameTooLargeError, match="113 bytes, allowed: at most 100"):
        protocol.encode({"text": "x" * 102})


def test_an_address_fits_and_is_found_whatever_the_models_name(identity: str) -> None:
    names = ["m", "m_stream", "m-1", "x" * 200, "ü"]
    listeners = [EngineListener(name, lambda _: None) for name in names]
    try:
        for name in names:
            (address,) = protocol.find_addresses(identity, name)
            assert len(address) < 108
        assert protocol.find_addresses(f"{identity}0", "m") == []
        assert protocol.find_addresses(identity, "n") == []
    finally:
        for listener in listeners:
            listener.close()
    assert [protocol.find_addresses(identity, name) for name in names] == [[]] * 5


def test_the_longest_identity_leaves_room_for_an_address() -> None:
    identity = f"{2**32 - 1}-{2**22}-{2**64 - 1}"  # inode, pid_max, clock ticks
    assert len(protocol.address_prefix(identity, "m")) + len(f"{2**22}-9999999") <= 107


def test_the_servers_identity_is_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    first = protocol.server_identity()
    assert first == protocol.server_identity()
    assert first.split("-")[1] == str(os.getppid())
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert protocol.server_identity() != first


def test_a_request_reaches_the_engine_and_its_answer_comes_back(
    listener: EngineListener, taken: list[ForwardedRequest], identity: str
) -> None:
    with Peer(identity) as peer:
        peer.ask(7, text_input=np.array([b"\xff hi"], dtype=np.object_), top_k=np.array([3]))
        assert eventually(lambda: len(taken) == 1)
        (request,) = taken
        text, top_k = request.tensor("text_input"), request.tensor("top_k")
        assert text is not None
        assert top_k is not None
        assert text.as_numpy().tolist() == [b"\xff hi"]
        assert top_k.as_numpy().tolist() == [3]
        assert request.tensor("seed") is None
        assert request.parameters() == "{}"
        assert request.requested_output_names() == ["text_output"]
        for _ in range(2):  # the second is ignored
            request.responder.send({"text_output": np.array([1.5])}, final=True)
        request.responder.fail(ValueError("late"))
        peer.ask(8)
        assert eventually(lambda: len(taken) == 2)
        taken[1].responder.fail(ValueError("a secret"))
        answer, error = peer.read(), peer.read()
    assert answer["id"] == 7
    assert protocol.unpack_tensor(answer["outputs"]["text_output"]).tolist() == [1.5]
    assert error["id"] == 8
    assert (error["status"], error["text"]) == ("INTERNAL", "internal error: ValueError")


def test_an_answer_too_large_is_an_error(
    listener: EngineListener,
    taken: list[ForwardedRequest],
    identity: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Peer(identity) as peer:
        peer.ask(1)
        assert eventually(lambda: len(taken) == 1)
        monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 300)
        taken[0].responder.send({"x": np.zeros(400)}, final=True)
        error = peer.read()
    assert error["status"] == "INTERNAL"
    assert "allowed: at most 300" in error["text"]


def test_a_cancelled_request_is_seen_so_and_gets_no_answer(
    listener: EngineListener, taken: list[ForwardedRequest], identity: str
) -> None:
    with Peer(identity) as peer:
        for number in (1, 2):
            peer.ask(number)
        assert eventually(lambda: len(taken) == 2)
        peer.send({"kind": "cancel", "id": 1})
        peer.send({"kind": "cancel", "id": 99})
        assert eventually(taken[0].responder.is_cancelled)
        assert not taken[1].responder.is_cancelled()
        for request in taken:
            request.responder.send({}, final=True)
        assert peer.read()["id"] == 2


def test_the_requests_of_a_front_that_vanishes_count_as_cancelled(
    listener: EngineListener, taken: list[ForwardedRequest], identity: str
) -> None:
    with Peer(identity) as other:
        with Peer(identity) as peer:
            peer.ask(1)
            assert eventually(lambda: len(taken) == 1)
        other.ask(1)
        assert eventually(lambda: len(taken) == 2)
        assert eventually(taken[0].responder.is_cancelled)
        assert not taken[1].responder.is_cancelled()
        for request in taken:
            request.responder.send({}, final=True)
        assert other.read()["id"] == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("!II", 2, 2) + b"{}",
        protocol.encode({"kind": "hello", "version": protocol.VERSION + 1}),
        protocol.encode(protocol.hello()) + struct.pack("!II", 2, 2) + b"{}",
        protocol.encode(protocol.hello()) + protocol.encode({"kind": "x", "id": 1}),
        protocol.encode(protocol.hello()) + protocol.encode({"kind": "request", "id": 1}),
    ],
)
def test_garbage_ends_its_own_connection_only(
    garbage: bytes,
    listener: EngineListener,
    taken: list[ForwardedRequest],
    identity: str,
    log_lines: list[str],
) -> None:
    with Peer(identity) as peer, Peer(identity, says_hello=False) as bad:
        bad.socket.sendall(garbage)
        assert bad.is_hung_up_on()
        assert eventually(lambda: len(log_lines) == 1)
        assert log_lines[0].startswith("W a caller's connection was ended: ")
        peer.ask(1)
        assert eventually(lambda: len(taken) == 1)


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


def test_a_stream_travels_piece_by_piece_and_ends_once(
    listener: EngineListener, taken: list[ForwardedRequest], identity: str
) -> None:
    with Peer(identity) as peer:
        for number in (1, 2):
            peer.ask(number)
        assert eventually(lambda: len(taken) == 2)
        first, second = (request.responder for request in taken)
        first.send({"x": np.array([1])}, final=False)
        second.send({"x": np.array([2])}, final=False)
        first.send({"x": np.array([3])}, final=True)
        first.send({"x": np.array([4])}, final=False)  # too late, and ignored
        second.fail(ValueError("broke off"))
        frames = [peer.read() for _ in range(4)]
    assert [(frame["kind"], frame["id"], frame.get("final")) for frame in frames] == [
        ("answer", 1, False),
        ("answer", 2, False),
        ("answer", 1, True),
        ("error", 2, None),
    ]


def test_a_stream_that_is_cancelled_sends_no_more(
    listener: EngineListener, taken: list[ForwardedRequest], identity: str
) -> None:
    with Peer(identity) as peer:
        for number in (1, 2):
            peer.ask(number)
        assert eventually(lambda: len(taken) == 2)
        taken[0].responder.send({}, final=False)
        assert peer.read()["id"] == 1
        peer.send({"kind": "cancel", "id": 1})
        assert eventually(taken[0].responder.is_cancelled)
        taken[0].responder.send({}, final=False)
        taken[1].responder.send({}, final=True)
        assert peer.read()["id"] == 2


def test_a_handler_that_raises_costs_one_request(identity: str, log_lines: list[str]) -> None:
    taken: list[ForwardedRequest] = []

    def handle(request: ForwardedRequest) -> None:
        taken.append(request)
        if len(taken) == 1:
            raise RuntimeError("quoting a prompt")

    listener = EngineListener("m_stream", handle)
    with Peer(identity) as peer:
        peer.ask(1)
        assert peer.read()["text"] == "internal error: RuntimeError"
        peer.ask(2)
        assert eventually(lambda: len(taken) == 2)
        taken[1].responder.send({}, final=True)
        assert peer.read()["id"] == 2
    listener.close()
    assert not any("prompt" in line for line in log_lines)


def test_a_draining_engine_answers_what_it_has_and_takes_no_more(
    listener: EngineListener, taken: list[ForwardedRequest], identity: str
) -> None:
    with Peer(identity) as peer:
        peer.ask(1)
        assert eventually(lambda: len(taken) == 1)
        listener.drain()
        assert protocol.find_addresses(identity, "m_stream") == []
        peer.ask(2)
        assert peer.read() == {"kind": "drain"}
        refusal = peer.read()
        assert (refusal["id"], refusal["status"], refusal["unloading"]) == (2, "UNAVAILABLE", True)
        taken[0].responder.send({}, final=True)
        listener.close()
        assert peer.read()["id"] == 1
    assert len(taken) == 1


@no_thread_left()
def test_closing_sends_the_last_answers_and_leaves_no_thread(identity: str) -> None:
    taken: list[ForwardedRequest] = []
    listener = EngineListener("m_stream", taken.append)
    with Peer(identity) as peer:
        for number in range(200):
            peer.ask(number)
        assert eventually(lambda: len(taken) == 200)
        for request in taken:
            request.responder.send({"x": np.zeros(5)}, final=True)
        listener.close()
        listener.close()
        frames = [peer.read() for _ in range(201)]
        assert [frame["id"] for frame in frames if "id" in frame] == list(range(200))
        assert peer.is_hung_up_on()


def test_a_peer_that_stops_reading_is_hung_up_on_instead_of_filling_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hf_runtime.link.connection._MAX_QUEUED_BYTES", 100_000)
    ours, theirs = socket.socketpair()
    ended = threading.Event()
    connection = Connection(ours, lambda _: None, lambda _: ended.set())
    connection.start()
    with theirs:
        sent = [connection.send(b"x" * 10_000) for _ in range(1000)]
        assert not all(sent)
        assert ended.wait(60)
    connection.close()

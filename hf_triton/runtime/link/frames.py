"""The frames of the engine link as bytes: requests, answers, cancellations, and their tensors; and
the connection that sends and receives them.

A frame is its size and a MessagePack list of its fields; a tensor is its type, its shape and its
data, for texts a list of them. Reading one can't run code. Numbers are in the machine's own order.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from msgspec import MsgspecError, msgpack

from ..errors import RequestError
from ..request.declared_tensor import BYTES, DTYPES, described
from ..request.request import Request
from ..request.responder import Array, Responder
from .protocol import LinkError

MAX_FRAME_BYTES = 256 * 2**20
# Far above what an engine admits at once; a peer that has stopped reading gets no more.
MAX_QUEUED_BYTES = 2 * MAX_FRAME_BYTES
REQUEST, ANSWER, ERROR, CANCEL, DRAIN = range(1, 6)
FINAL = 1  # a flag of an answer
UNLOADING = 1  # a flag of an error: it is neither the request's fault nor a full queue's
_MAY_STREAM, _IS_ROUTED = 1, 2  # flags of a request

# Not multiprocessing.connection, which frames alike: it reads and writes every frame by itself, for
# 2 to 4 times the processor time where many small ones are queued (200 bytes: 3.3 microseconds a
# frame, 0.7 here), connects without a timeout, and gives no way to wake a thread that reads.
SIZE = struct.Struct("=I")  # of what follows, in bytes
_Tensor = tuple[str, list[int], bytes | list[bytes]]
_DECODER = msgpack.Decoder(tuple[int, int, int, list[str], dict[str, _Tensor]])


class FrameTooLargeError(Exception):
    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes, allowed: at most {MAX_FRAME_BYTES}")


class Frame(NamedTuple):
    """``kind`` is REQUEST, ANSWER, ERROR, CANCEL or DRAIN, which also says what the bits of
    ``flags`` and the ``texts`` are; ``number`` tells the connection's requests apart.
    """

    kind: int
    number: int = 0
    flags: int = 0
    texts: Sequence[str] = ()
    tensors: Mapping[str, Array] = MappingProxyType({})


def encode_request(request: Request, number: int) -> bytes:
    """The frame of a request. Raises RequestError: it is too large."""
    flags = request.may_stream * _MAY_STREAM | request.is_routed * _IS_ROUTED
    texts = (request.responder.request_id, request.written_parameters(), *request.outputs)
    try:
        return encode(Frame(REQUEST, number, flags, texts, request.inputs))
    except FrameTooLargeError as error:
        raise RequestError(f"the request: got {error}") from None


def read_request(frame: Frame, responder: Callable[[str], Responder]) -> Request:
    """The request in a frame; ``responder`` makes what answers it, of its id. Raises LinkError."""
    if len(frame.texts) < 2:
        raise LinkError("a request lacks a field")
    request_id, parameters, *outputs = frame.texts
    may_stream, is_routed = bool(frame.flags & _MAY_STREAM), bool(frame.flags & _IS_ROUTED)
    more: dict[str, Any] = {"outputs": outputs, "may_stream": may_stream, "is_routed": is_routed}
    try:
        return Request.read(frame.tensors, parameters, responder(request_id), **more)
    except (ValueError, RecursionError) as error:
        raise LinkError("a request's parameters are not JSON") from error


def encode(frame: Frame) -> bytes:
    """A frame as bytes; texts of tensors as UTF-8. Raises FrameTooLargeError, KeyError."""
    tensors = {name: described(array) for name, array in frame.tensors.items()}
    data = msgpack.encode((*frame[:4], tensors))
    if len(data) > MAX_FRAME_BYTES:
        raise FrameTooLargeError(len(data))
    return SIZE.pack(len(data)) + data


def read_frame(stream: BinaryIO) -> Frame | None:
    """The next frame; None if the peer has closed the connection. Raises LinkError, OSError."""
    head = stream.read(SIZE.size)
    if not head:
        return None
    if len(head) < SIZE.size:
        raise LinkError("a frame ended early")
    (size,) = SIZE.unpack(head)
    if size > MAX_FRAME_BYTES:
        raise LinkError(f"a frame of {size} bytes, allowed: at most {MAX_FRAME_BYTES}")
    body = stream.read(size)
    if len(body) < size:
        raise LinkError("a frame ended early")
    try:
        kind, number, flags, texts, told = _DECODER.decode(body)
        tensors = {name: _array(*one) for name, one in told.items()}
        return Frame(kind, number, flags, texts, tensors)
    except (MsgspecError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise LinkError("a frame's fields and size disagree") from error


def _array(type_name: str, shape: list[int], data: bytes | list[bytes]) -> Array:
    """A tensor as it was described. Raises ValueError, TypeError, LookupError."""
    if isinstance(data, bytes):
        # A copy, because numbers must lie aligned.
        return np.frombuffer(data, DTYPES[type_name]).reshape(shape).copy()
    if type_name != BYTES:
        raise ValueError
    array = np.empty(len(data), dtype=np.object_)
    array[:] = data
    return array.reshape(shape)


class Connection:
    """Our end of a connected socket, whose peer has been checked."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._changed = threading.Condition()
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._closing = False
        self._broken = False
        self._reader = threading.Thread(target=self._read, name="link reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="link writer", daemon=True)

    def on_frame(self, frame: Frame) -> None:
        """Called on the reader's thread for every frame. Raises LinkError for a wrong one."""

    def on_end(self, fault: LinkError | None) -> None:
        """Called once, on that thread; ``fault`` of a peer that broke the protocol."""

    def start(self) -> None:
        self._writer.start()  # first: a reader that ends at once joins the writer
        self._reader.start()

    def send(self, data: bytes) -> bool:
        """Queues an encoded frame; False if the peer has gone or does not read."""
        with self._changed:
            full = self._queued_bytes and self._queued_bytes + len(data) > MAX_QUEUED_BYTES
            if self._closing or self._broken or full:
                if full:
                    self._hang_up()
                return False
            self._queue.append(data)
            self._queued_bytes += len(data)
            self._changed.notify()
        return True

    def close(self, flush_s: float = 0.0) -> None:
        """Sends queued frames for at most ``flush_s``, disconnects, and ends both threads."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if flush_s:
            self._writer.join(flush_s)
        self._hang_up()
        for thread in (self._writer, self._reader):
            if thread is not threading.current_thread():
                thread.join()

    def _hang_up(self) -> None:
        """Disconnects and wakes both threads; the reader closes the socket."""
        self._broken = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        fault: LinkError | None = None
        try:
            with self._socket.makefile("rb") as stream:
                while (frame := read_frame(stream)) is not None:
                    self.on_frame(frame)
        except LinkError as error:
            fault = error
        except OSError:
            pass  # the peer has gone
        finally:
            with self._changed:
                self._hang_up()
                self._changed.notify()
            self.on_end(fault)
            self._writer.join()
            self._socket.close()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the reader notices too
            while data := self._next_data():
                self._socket.sendall(data, socket.MSG_NOSIGNAL)
        with self._changed:
            self._queue, self._queued_bytes = [], 0
            if not self._closing:
                self._hang_up()

    def _next_data(self) -> bytes:
        """Waits for queued frames and returns them joined; empty when the connection ends."""
        with self._changed:
            while not (self._queue or self._closing or self._broken):
                self._changed.wait()
            if self._broken:
                return b""
            queue, self._queue, self._queued_bytes = self._queue, [], 0
        return b"".join(queue)

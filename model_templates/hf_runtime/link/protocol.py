"""The addresses of engines, and the frames of the engine link between them and their clients:
fronts, and models that route requests to other models.

All are Triton models of one server, each in a process of its own. An engine listens at an abstract
Unix socket (man 7 unix), which leaves no file behind. A frame is two lengths, a JSON object, and
the bytes of its texts and files, so reading one can't run code. Knows neither Triton nor what the
tensors mean.

BLS, Triton's own calls from model to model, does not do: it holds a thread for each waiting request
(of 200 requests 6 ran at a time) and does not pass cancellations on.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import re
import socket
import struct
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Frame = dict[str, Any]

# To be incremented whenever a frame changes its meaning: generated folders of two releases can be
# connected for the moment between two reloads.
VERSION = 3
MAX_FRAME_BYTES = 256 * 2**20

# Not multiprocessing.connection, which frames alike: it reads and writes every frame by itself, for
# 2 to 4 times the processor time where many small ones are queued (200 bytes: 3.3 microseconds a
# frame, 0.7 here), connects without a timeout, and gives no way to wake a thread that reads.
_LENGTHS = struct.Struct("!II")  # of all that follows, and of the JSON in it
_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_DTYPES = frozenset(["bool", "float16", "float32", "float64", *_INTEGERS])
_STARTTIME = 22 - 3  # man 5 proc_pid_stat: field 22, counted from the one after the name
_LISTENS = "00010000"  # the flag __SO_ACCEPTCON in /proc/net/unix
_listener_numbers = itertools.count()


class LinkError(Exception):
    """The peer is of another user or version, or sent something that is no frame."""


class FrameTooLargeError(Exception):
    """A frame would be larger than MAX_FRAME_BYTES."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes, allowed: at most {MAX_FRAME_BYTES}")


def server_identity() -> str:
    """Identifies the running tritonserver: its process id, start time and pid namespace.

    A process id alone is used again in other containers, and after a while in the same one.
    """
    parent = os.getppid()
    stat = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8", errors="replace")
    started = stat.rpartition(")")[2].split()[_STARTTIME]
    namespace = re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    return f"{namespace}-{parent}-{started}"


def address_prefix(identity: str, model: str) -> str:
    """The beginning of the addresses of a model's engines. A digest stands for the name, because an
    address has at most 107 bytes.
    """
    digest = hashlib.sha256(model.encode()).hexdigest()[:16]
    return f"hf_triton-{identity}-{digest}-"


def new_address(model: str) -> str:
    """An address that no other listener uses."""
    prefix = address_prefix(server_identity(), model)
    return f"{prefix}{os.getpid()}-{next(_listener_numbers)}"


def find_addresses(identity: str, model: str) -> list[str]:
    """The addresses at which the model's engines listen now."""
    prefix = f"@{address_prefix(identity, model)}"
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    columns = (line.split(maxsplit=7) for line in lines if prefix in line)
    # A listener's connections are listed under its name too.
    return sorted(row[7][1:] for row in columns if row[3] == _LISTENS and row[7].startswith(prefix))


def check_peer(sock: socket.socket) -> None:
    """Raises LinkError unless the peer's process runs as our own user: an abstract socket has no
    file permissions.
    """
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    if uid != os.geteuid():
        raise LinkError(f"peer is of user {uid}, allowed: {os.geteuid()}")


def hello() -> Frame:
    """The first frame in both directions."""
    return {"kind": "hello", "version": VERSION}


def check_hello(frame: Frame) -> None:
    """Raises LinkError unless the peer uses our version of the protocol."""
    if frame.get("kind") != "hello":
        raise LinkError("the first frame is not a hello")
    if frame.get("version") != VERSION:
        raise LinkError(f"version {frame.get('version')} of the link, here: {VERSION}")


def encode(frame: Mapping[str, Any]) -> bytes:
    """A frame as bytes, its lengths first. Raises FrameTooLargeError."""
    pieces: list[bytes] = []

    def length(piece: bytes) -> int:
        pieces.append(piece)
        return len(piece)

    # In JSON a byte of an image would take up to six.
    body = json.dumps(frame, separators=(",", ":"), default=length).encode("ascii")
    size = len(body) + sum(map(len, pieces))
    if size > MAX_FRAME_BYTES:
        raise FrameTooLargeError(size)
    return b"".join((_LENGTHS.pack(size, len(body)), body, *pieces))


def read_frame(stream: BinaryIO) -> Frame | None:
    """The next frame; None if the peer has closed the connection.

    Raises:
        LinkError: it is too large, torn, or not a JSON object.
        OSError: the connection broke.
    """
    head = stream.read(_LENGTHS.size)
    if not head:
        return None
    size, num_json = _LENGTHS.unpack(head) if len(head) == _LENGTHS.size else (0, 0)
    if not 0 < num_json <= size <= MAX_FRAME_BYTES:
        raise LinkError(f"a frame of {size} bytes, allowed: 1 to {MAX_FRAME_BYTES}")
    body = stream.read(num_json)
    rest = io.BytesIO(stream.read(size - num_json) if size > num_json else b"")
    if len(body) + len(rest.getbuffer()) < size:
        raise LinkError("a frame ended early")
    try:
        frame = json.loads(body, object_hook=partial(_with_bytes, rest))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LinkError("a frame is not JSON") from error
    if not isinstance(frame, dict):
        raise LinkError("a frame is not a JSON object")
    return frame


def _with_bytes(rest: BinaryIO, value: Frame) -> Frame:
    """A tensor of bytes with them in place of their lengths: they lie in the order of the JSON."""
    if value.get("dtype") == "bytes":
        value["data"] = [rest.read(length) for length in value["data"]]
    return value


def pack_tensor(array: Array) -> Frame:
    """An array of any of Triton's data types as JSON values; texts as bytes."""
    flat = array.reshape(-1).tolist()
    if array.dtype == np.object_:
        data = [value.encode() if isinstance(value, str) else value for value in flat]
        return {"dtype": "bytes", "shape": list(array.shape), "data": data}
    assert array.dtype.name in _DTYPES
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": flat}


def unpack_tensor(packed: Any) -> Array:
    """The array that ``pack_tensor`` was given, bit for bit. Raises LinkError."""
    try:
        dtype, shape, data = packed["dtype"], packed["shape"], packed["data"]
        if dtype == "bytes":
            if not all(isinstance(value, bytes) for value in data):
                raise LinkError("a tensor of bytes has something else")
            array = np.empty(len(data), dtype=np.object_)
            array[:] = data
        elif dtype in _DTYPES:
            array = np.array(data, dtype=dtype)
        else:
            raise LinkError("a tensor of no known data type")
        return array.reshape(shape)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise LinkError("a tensor does not hold together") from error

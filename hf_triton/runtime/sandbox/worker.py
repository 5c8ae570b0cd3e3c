"""What a fork of the pool does: it calls the functions that it is asked to, one after another.

A question is ``QUESTION`` (seconds, bytes of memory, number of parts), the length of each part as
``LENGTH``, then the parts: the function's name, and what it is given. An answer is ``ANSWER``
(kind, length) and its bytes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from ..errors import RequestError
from .limits import end_after, limit_memory, num_own_bytes
from .program import find_function

QUESTION = struct.Struct("<dQI")
LENGTH = struct.Struct("<Q")
ANSWER = struct.Struct("<BQ")
DONE, REFUSED, FAILED = 1, 2, 3
_SLACK_BYTES = 64 * 2**20  # for the modules that a function imports at its first call
_MAX_KEPT_BYTES = 256 * 2**20  # from one question to the next


def prepare(ready: bytes) -> Callable[[socket.socket], None]:
    """Calls the function of this name, if any: processes share what it imports."""
    if ready:
        find_function(ready.decode())()
    return answer_questions


def answer_questions(connection: socket.socket) -> None:
    """Until the other end is closed, or so much memory is kept that another process is better."""
    while num_own_bytes() < _MAX_KEPT_BYTES and (head := receive(connection, QUESTION.size)):
        seconds, max_bytes, num_parts = QUESTION.unpack(head)
        lengths = struct.unpack(f"<{num_parts}Q", receive(connection, num_parts * LENGTH.size))
        name, *given = [bytes(receive(connection, length)) for length in lengths]
        limit_memory(max_bytes + _SLACK_BYTES)
        end_after(seconds)
        kind, answer = _answer(name.decode(), given)
        end_after(0)
        connection.sendall(ANSWER.pack(kind, len(answer)))
        connection.sendall(answer)


def _answer(name: str, given: list[bytes]) -> tuple[int, bytes]:
    """An error's own text may quote a caller's: only a RequestError's is told."""
    try:
        return DONE, find_function(name)(*given)
    except RequestError as error:
        return REFUSED, str(error).encode()
    except BaseException as error:  # PyO3's PanicException is not an Exception
        return FAILED, type(error).__name__.encode()


def receive(connection: socket.socket, length: int) -> bytearray:
    """So many bytes; none where the other end is closed."""
    received = bytearray(length)
    view, num_received = memoryview(received), 0
    while num_received < length:
        count = connection.recv_into(view[num_received:])
        if not count:
            return bytearray()
        num_received += count
    return received

"""What a fork of the pool does: it calls the functions that it is asked to, one after another.

A question is ``QUESTION`` (seconds, bytes of memory or 0 for no other limit than before, number of
parts), the length of each part as ``LENGTH``, then the parts: the function's name, and what it is
given. An answer is ``ANSWER`` (kind, bytes of memory that this process has taken, length) and its
bytes.
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
ANSWER = struct.Struct("<BQQ")
DONE, REFUSED, FAILED = 1, 2, 3
_SMALL = 2**16  # bytes of an answer that is sent with its head
_SLACK_BYTES = 64 * 2**20  # for the modules that a function imports at its first call


def prepare(ready: bytes) -> Callable[[socket.socket], None]:
    """Calls the function of this name, if any, with what follows a zero byte: processes share what
    it imports and makes.
    """
    name, _, given = ready.partition(b"\0")
    if name:
        find_function(name.decode())(*([given] if given else []))
    return answer_questions


def answer_questions(connection: socket.socket) -> None:
    """Until the other end is closed."""
    questions, had = connection.makefile("rb"), num_own_bytes()
    while head := questions.read(QUESTION.size):
        seconds, max_bytes, num_parts = QUESTION.unpack(head)
        lengths = struct.unpack(f"<{num_parts}Q", questions.read(num_parts * LENGTH.size))
        name, *given = [questions.read(length) for length in lengths]
        if max_bytes:
            limit_memory(max_bytes + _SLACK_BYTES)
        end_after(seconds)
        kind, answer = _answer(name.decode(), given)
        end_after(0)
        head = ANSWER.pack(kind, max(0, num_own_bytes() - had), len(answer))
        connection.sendall(head + answer if len(answer) <= _SMALL else head)
        if len(answer) > _SMALL:
            connection.sendall(answer)


def _answer(name: str, given: list[bytes]) -> tuple[int, bytes]:
    """An error's own text may quote a caller's: only a RequestError's is told."""
    try:
        return DONE, find_function(name)(*given)
    except RequestError as error:
        return REFUSED, str(error).encode()
    except BaseException as error:  # PyO3's PanicException is not an Exception
        return FAILED, type(error).__name__.encode()

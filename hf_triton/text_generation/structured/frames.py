"""What a grammar's process and the engine's say to each other, byte by byte.

Orders, from the engine: ``FOLLOW`` a token, ``DROP`` an output. Answers: ``STATE`` after a token,
then the ``MASK`` of what may come next. Numbers are those of outputs, 0 of what comes before the
first token: there ``TAKES_LONG`` may come first. Knows no grammar.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

FOLLOW, DROP = 1, 2
STATE, MASK, TAKES_LONG = 1, 2, 3
GOES_ON, IS_COMPLETE, IS_REFUSED, MAY_END = 0, 1, 2, 3

_ORDER = struct.Struct("<BIi")  # kind, number, token
_ANSWER = struct.Struct("<BIQI")  # kind, number, bytes of memory, bytes of payload


def order(kind: int, number: int, token_id: int = 0) -> bytes:
    return _ORDER.pack(kind, number, token_id)


def take_orders(buffer: bytearray) -> Iterator[tuple[int, int, int]]:
    """The whole (kind, number, token) at the beginning of a buffer, which are taken out of it."""
    while len(buffer) >= _ORDER.size:
        kind, number, token_id = _ORDER.unpack_from(buffer)
        del buffer[: _ORDER.size]
        yield kind, number, token_id


def answer(kind: int, number: int, num_bytes: int, payload: bytes) -> bytes:
    """One answer; ``num_bytes`` is the memory that the process has taken."""
    return _ANSWER.pack(kind, number, num_bytes, len(payload)) + payload


def take_answers(buffer: bytearray) -> Iterator[tuple[int, int, int, bytes]]:
    """The whole (kind, number, num_bytes, payload) at the beginning of a buffer, likewise."""
    while len(buffer) >= _ANSWER.size:
        kind, number, num_bytes, length = _ANSWER.unpack_from(buffer)
        if len(buffer) < _ANSWER.size + length:
            return
        payload = bytes(buffer[_ANSWER.size : _ANSWER.size + length])
        del buffer[: _ANSWER.size + length]
        yield kind, number, num_bytes, payload

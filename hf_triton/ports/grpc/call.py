"""One gRPC call on its way to tritonserver: its messages, taken from what the client sends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hf_triton.ports.callers import Account
from hf_triton.ports.compressed import ENCODINGS, expanded
from hf_triton.ports.grpc.heads import Head
from hf_triton.ports.grpc.message_relay import PREFIX_BYTES, MessageRelay
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.repeats import Held


@dataclass(eq=False)
class Call:
    """``stream`` is its number at the client, ``triton_stream`` that at tritonserver, 0 before."""

    stream: int
    head: Head
    began_at_s: float  # of the message that is coming; once it is left, of that
    answer_window: int  # how much the client lets tritonserver send
    window: int = 0  # how much tritonserver lets it send
    account: Account | None = None
    triton_stream: int = 0
    model: str = ""  # of its last message
    asks_ours: bool = False  # with that
    held: Held | None = None  # what may be sent again, until the answer ends
    payload: bytearray | None = None  # of that, as long as it may be
    is_waiting: bool = False  # for its model
    has_head: bool = False  # of an answer, at the client
    has_new_head: bool = False  # since it was sent last
    name: str = ""  # by which our models know it
    relay: MessageRelay | None = None  # for the answer to a stream that may go on elsewhere
    num_sent: int = 0
    num_open: int = 0  # of those, since all before were answered
    task: asyncio.Task[None] | None = None  # that sends it later
    has_answer: bool = False
    is_sent: bool = False  # the client sends no more
    is_left: bool = False  # the client wants no answer
    credit: int = 0  # what of that tritonserver is not told before it knows the call
    num_unread: int = 0  # bytes received that the client has not been given room for again
    num_held: int = 0  # bytes in this process
    incoming: bytearray = field(default_factory=bytearray)
    waiting: list[bytes] | None = None  # messages from one on that is being looked up
    pending: bytearray = field(default_factory=bytearray)  # for tritonserver
    is_passed_on: bool = False  # tritonserver knows that no more comes
    is_over: bool = False  # tritonserver has said all

    def messages(self, max_bytes: int) -> list[bytes]:
        """The messages that are complete now, none of them compressed. Raises RefusedError."""
        found = []
        incoming = self.incoming
        while len(incoming) >= PREFIX_BYTES:
            length = int.from_bytes(incoming[1:PREFIX_BYTES], "big")
            if length > max_bytes:
                raise _too_large(length, max_bytes)
            end = PREFIX_BYTES + length
            if len(incoming) < end:
                break
            message = bytes(memoryview(incoming)[PREFIX_BYTES:end])
            found.append(self._decoded(message, max_bytes) if incoming[0] else message)
            del incoming[:end]
        return found

    def _decoded(self, message: bytes, max_bytes: int) -> bytes:
        if self.head.encoding not in ENCODINGS:
            raise RefusedError(501, "got a message that is compressed; allowed: gzip, deflate")
        return expanded(message, max_bytes, "message")


def _too_large(length: int, max_bytes: int) -> RefusedError:
    allowed = f"{max_bytes >> 20} MiB (max_body_mib in models.yaml's server:)"
    return RefusedError(413, f"got a message of {length} bytes, allowed: {allowed}")


def prefixed(message: bytes) -> bytes:
    """A message as it goes on."""
    return b"".join((b"\0", len(message).to_bytes(4, "big"), message))

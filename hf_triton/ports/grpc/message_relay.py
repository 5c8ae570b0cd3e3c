"""The answer to a stream, message by message: of one that may go on in another process the client
gets whole messages alone.
"""

from __future__ import annotations

from hf_triton.ports.grpc import frames as h2

PREFIX_BYTES = 5  # whether a message is compressed, and its length
_FRAME = h2.MAX_FRAME_BYTES
_MOST_READY = 1 << 18


class MessageRelay:
    """What has come of messages, and what the client has not had room for. ``num_taken`` are bytes
    that Triton has not been given room for again.
    """

    def __init__(self) -> None:
        self._incoming = bytearray()
        self._ready = bytearray()
        self.trailers: h2.Frame | None = None  # which come behind that
        self.num_taken = 0

    @property
    def is_empty(self) -> bool:
        """Whether the client has every whole message."""
        return not self._ready

    def take(self, data: bytes) -> list[bytes]:
        """Bytes of Triton's. Returns the messages that are complete now, with their prefixes."""
        incoming, found = self._incoming, []
        incoming += data
        self.num_taken += len(data)
        while len(incoming) >= PREFIX_BYTES:
            end = PREFIX_BYTES + int.from_bytes(incoming[1:PREFIX_BYTES], "big")
            if len(incoming) < end:
                break
            found.append(bytes(incoming[:end]))
            del incoming[:end]
        return found

    def room_for_triton(self) -> int:
        """How many bytes more Triton may send of the call: none while the client does not read."""
        if len(self._ready) > _MOST_READY:
            return 0
        room, self.num_taken = self.num_taken, 0
        return room

    def begin_again(self) -> int:
        """Forgets the message of which a part has come; returns how many bytes."""
        num_bytes, self.num_taken = len(self._incoming), 0
        self._incoming.clear()
        return num_bytes

    def add(self, message: bytes) -> None:
        """A message for the client."""
        self._ready += message

    def frames(self, stream: int, room: int) -> tuple[bytes, int]:
        """Frames of the client's ``stream`` with as many bytes as it has ``room`` for, and how many
        those are.
        """
        end = max(0, min(len(self._ready), room))
        frames = [
            h2.frame(h2.DATA, 0, stream, bytes(self._ready[start : min(end, start + _FRAME)]))
            for start in range(0, end, _FRAME)
        ]
        del self._ready[:end]
        return b"".join(frames), end

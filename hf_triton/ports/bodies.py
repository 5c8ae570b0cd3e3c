"""The memory that requests may take: each a bounded size, and those of all ports together."""

from __future__ import annotations

import zlib

from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.settings import MIB

ALL_MIB = 512  # but two of the largest requests at least
SMALL_BYTES = 65_536  # of a request that there is always room for
ENCODINGS = (b"gzip", b"deflate")
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
# Expanding takes time in which nobody else is served: beyond this size it is bounded by a ratio.
_MAX_FREE_BYTES, _MAX_RATIO = 1 << 22, 100


class Bodies:
    """Requests that come, or that tritonserver does not have yet: ``num_bytes`` of them."""

    def __init__(self, max_mib: int) -> None:
        self.num_bytes, self.max_bytes = 0, max_mib * MIB
        self.all_bytes = max(ALL_MIB, 2 * max_mib) * MIB
        self._allowed = f"{max_mib} MiB (max_body_mib in models.yaml's server:)"

    def has_room(self, num_bytes: int, request_bytes: int) -> bool:
        """Whether ``num_bytes`` more may be held, of a request of which there are then so many."""
        is_full = self.num_bytes + num_bytes > self.all_bytes
        return request_bytes <= SMALL_BYTES or not is_full

    def may_keep(self, request_bytes: int) -> bool:
        """Whether a request that tritonserver has may be held still, to be sent again."""
        return request_bytes <= SMALL_BYTES or self.num_bytes <= self.all_bytes // 2

    def check_length(self, num_bytes: int) -> None:
        """Raises RefusedError for a body that says that it is too large."""
        if num_bytes > self.max_bytes:
            raise self._too_large(f"{num_bytes} bytes")

    def take(self, num_bytes: int, request_bytes: int) -> None:
        """Counts ``num_bytes`` more of a body of which there are then so many. Raises RefusedError
        where they are too many.
        """
        if request_bytes > self.max_bytes:
            raise self._too_large("more")
        if not self.has_room(num_bytes, request_bytes):
            text = "too many large bodies come at once; try again"
            raise RefusedError(503, text, {"Retry-After": "1"})
        self.num_bytes += num_bytes

    def _too_large(self, got: str) -> RefusedError:
        return RefusedError(413, f"the body: got {got}, allowed: {self._allowed}")


def expanded(data: bytes, max_bytes: int, what: str) -> bytes:
    """What was compressed, whichever of ENCODINGS it is; ``what`` it is called in errors. Raises
    RefusedError.
    """
    max_bytes = min(max_bytes, max(_MAX_FREE_BYTES, _MAX_RATIO * len(data)))
    decoder = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        found = decoder.decompress(data, max_bytes + 1)
    except zlib.error:
        raise RefusedError(400, f"got a compressed {what} that can't be decoded") from None
    if len(found) > max_bytes:
        text = f"got a {what} that expands to more than {max_bytes} bytes; send it as it is"
        raise RefusedError(413, text)
    if not decoder.eof or decoder.unused_data:
        raise RefusedError(400, f"got a compressed {what} that is cut short, or more than one")
    return found

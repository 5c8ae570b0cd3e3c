"""Limits on the memory of request bodies: of each one, and of all that the ports hold."""

from __future__ import annotations

import zlib

from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.settings import MIB

ALL_MIB = 512  # or the size of two of the largest requests, if that is more
SMALL_BYTES = 65_536  # requests up to this size are never refused for lack of room
# In one message: Triton looks keys up one by one, and takes time with the square of some entries.
# 60,000 keys kept its HTTP port busy for minutes.
MAX_ENTRIES = 256
ENCODINGS = (b"gzip", b"deflate")
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
# Nobody else is served while a body expands, so one that grows beyond this size may grow by at most
# this ratio.
_MAX_FREE_BYTES, _MAX_RATIO = 1 << 22, 100


class Bodies:
    """Counts the bytes of bodies that are arriving or that tritonserver does not have yet."""

    def __init__(self, max_mib: int) -> None:
        self.num_bytes, self.max_bytes = 0, max_mib * MIB
        self.all_bytes = max(ALL_MIB, 2 * max_mib) * MIB
        self._allowed = f"{max_mib} MiB (max_body_mib in models.yaml's server:)"

    def has_room(self, num_bytes: int, request_bytes: int) -> bool:
        """True if ``num_bytes`` more fit, of a request that then has ``request_bytes`` in all."""
        is_full = self.num_bytes + num_bytes > self.all_bytes
        return request_bytes <= SMALL_BYTES or not is_full

    def check_length(self, num_bytes: int) -> None:
        """Raises RefusedError if the length that a request announces is too large."""
        if num_bytes > self.max_bytes:
            raise self.too_large(f"{num_bytes} bytes")

    def too_large(self, got: str) -> RefusedError:
        return RefusedError(413, f"the body: got {got}, allowed: {self._allowed}")


class Buffered:
    """The bytes of one request that a port holds; they count until it is ``free``."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self.num_bytes = bodies, 0

    def take(self, num_bytes: int) -> None:
        """Counts ``num_bytes`` more. Raises RefusedError if this body or all bodies together are
        too large.
        """
        bodies, request_bytes = self._bodies, self.num_bytes + num_bytes
        if request_bytes > bodies.max_bytes:
            raise bodies.too_large("more")
        if not bodies.has_room(num_bytes, request_bytes):
            text = "too many large bodies come at once; try again"
            raise RefusedError(503, text, {"Retry-After": "1"})
        bodies.num_bytes += num_bytes
        self.num_bytes = request_bytes

    def keep(self) -> bool:
        """Keeps a request that tritonserver has, to be sent again. Frees it, and returns False,
        where large ones take too much.
        """
        bodies = self._bodies
        keeps = self.num_bytes <= SMALL_BYTES or bodies.num_bytes <= bodies.all_bytes // 2
        if not keeps:
            self.free()
        return keeps

    def free(self) -> None:
        self._bodies.num_bytes -= self.num_bytes
        self.num_bytes = 0


def check_count(count: int, where: str) -> None:
    """Raises RefusedError for more entries than a message may have."""
    if count > MAX_ENTRIES:
        raise RefusedError(400, f"{where}: got {count} entries, allowed: {MAX_ENTRIES}")


def expanded(data: bytes, max_bytes: int, what: str) -> bytes:
    """Decompresses data of any of ENCODINGS; errors call it ``what``. Raises RefusedError."""
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

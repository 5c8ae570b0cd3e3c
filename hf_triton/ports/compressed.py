"""Bodies and messages that came compressed, within bounds."""

from __future__ import annotations

import zlib

from hf_triton.ports.refusal import RefusedError

ENCODINGS = (b"gzip", b"deflate")
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
# Expanding takes time in which nobody else is served: beyond this size it is bounded by a ratio.
_MAX_FREE_BYTES, _MAX_RATIO = 1 << 22, 100


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

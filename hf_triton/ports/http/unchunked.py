"""An answer for a client of HTTP/1.0, which knows no chunks: it ends with its connection.

Triton sends chunks to such clients too. https://www.rfc-editor.org/rfc/rfc9112#section-6.1
"""

from __future__ import annotations

import httptools

_DROPPED = (b"transfer-encoding:", b"connection:")
_END = b"\r\n\r\n"


class Unchunked:
    """Takes the bytes of one answer; one that is not in chunks stays as it is."""

    def __init__(self) -> None:
        self._head = b""
        self._is_plain = False
        self._parser: httptools.HttpResponseParser | None = None
        self._body = bytearray()

    def feed(self, data: bytes) -> bytes:
        """What the client gets of the next bytes."""
        if self._is_plain:
            return data
        if self._parser is None:
            self._head += data
            head, end, _ = self._head.partition(_END)
            if not end:
                return b""
            data = self._head
            self._is_plain = _DROPPED[0] not in head.lower()
            if self._is_plain:
                return data
            kept = (line for line in head.split(b"\r\n") if not line.lower().startswith(_DROPPED))
            self._body += b"\r\n".join((*kept, b"Connection: close")) + _END
            self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(data)
        told = bytes(self._body)
        self._body.clear()
        return told

    def on_body(self, piece: bytes) -> None:
        """Of httptools."""
        self._body += piece

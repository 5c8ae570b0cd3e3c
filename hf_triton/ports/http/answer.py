"""The answers that the proxy gives itself, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from http.client import responses


def answer(
    status: int, body: bytes, headers: Mapping[str, str], extra: bytes, *, closes: bool
) -> bytes:
    """A whole answer; ``extra`` are header lines as they are, ``closes`` says that it is the
    connection's last.
    """
    lines = [f"HTTP/1.1 {status} {responses.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if status != HTTPStatus.NO_CONTENT:
        lines.append(f"Content-Length: {len(body)}")
    lines.append(f"Connection: {'close' if closes else 'keep-alive'}")
    head = "".join(f"{line}\r\n" for line in lines).encode("latin-1", "replace")
    return b"".join((head, extra, b"\r\n", body))

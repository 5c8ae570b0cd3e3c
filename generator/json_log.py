"""Turns everything that this process and its children write to stderr into lines of JSON.

By its file descriptor: what libraries and children write comes along, whoever they are.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from datetime import datetime, timezone

from generator.log_records import to_json

_STDERR = 2
_CHUNK_BYTES = 65536
_LAST_LINES_S = 10.0  # a child that outlives us could keep its end open


def start() -> None:
    """From here to the end of the process."""
    reading, writing = os.pipe()
    stderr = os.dup(_STDERR)
    os.set_inheritable(stderr, False)
    sys.stderr.flush()
    os.dup2(writing, _STDERR)
    os.close(writing)
    thread = threading.Thread(target=_pass_on, args=(reading, stderr), daemon=True)
    thread.start()
    atexit.register(_end, thread, stderr)


def _end(thread: threading.Thread, stderr: int) -> None:
    """Gives stderr back, so that nothing keeps the pipe open, and waits for its last lines."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os.dup2(stderr, _STDERR)
    thread.join(_LAST_LINES_S)


def _pass_on(reading: int, stderr: int) -> None:
    rest = b""
    while chunk := os.read(reading, _CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        _write(stderr, lines)
    _write(stderr, [rest])


def _write(stderr: int, lines: list[bytes]) -> None:
    now = datetime.now(timezone.utc)
    texts = (line.decode("utf-8", errors="replace").rstrip("\r") for line in lines)
    data = "".join(f"{to_json(text, now)}\n" for text in texts if text.strip()).encode()
    with contextlib.suppress(OSError):  # nobody reads it; who writes must not block
        while data:
            data = data[os.write(stderr, data) :]

"""Turns everything that this process and its children write to stderr into lines of JSON.

Replaces the file descriptor, so that the lines of libraries and children are included. A line's
record names its writer and severity, and the model and request that it is about.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import sys
import threading
from datetime import datetime, timezone

_STDERR = 2
_CHUNK_BYTES = 65536
_LAST_LINES_S = 10.0  # a child that outlives us could keep its end open
# Triton's log line, and that of gRPC's libraries: I1120 11:05:01.464615 4596 server.cc:345] "text"
TRITON_LINE = re.compile(
    r"(?P<severity>[IWEF])\d{4} [\d:.]+ +\d+ (?P<file>[^\s:]+):(?P<line>\d+)\]\s?(?P<message>.*)"
)
_OUR_PREFIX = "hf-triton: "
_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "fatal"}
_FAILURE = re.compile(r"\b(fail(s|ed)|died|can't|did not|given up|went away)\b")
# [Error] File: /long/path/otlp_http_client.cc:200 [OTLP HTTP Client] text
_OPENTELEMETRY = re.compile(r"\[(?P<level>\w+)\] File: \S*?(?P<source>[^\s/]+:\d+) (?P<message>.*)")
_ERROR = re.compile(r"Traceback \(|\[?Error\b|\w*(Error|Exception)\b:|Fatal ")
_MODEL = re.compile(r"\bmodel '([^']+)'|^([A-Za-z0-9][\w.-]*) is ready\b")
# What models log begins with their name.
_OWN_MODEL = re.compile(r"([A-Za-z0-9][\w.-]*): ")
_REQUEST = re.compile(r"\[request id: ([^\]]*)\]")


def start() -> None:
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
    texts = (line.decode(errors="replace").rstrip("\r") for line in lines)
    data = "".join(f"{to_json(text, now)}\n" for text in texts if text.strip()).encode()
    with contextlib.suppress(OSError):  # nobody reads it; who writes must not block
        while data:
            data = data[os.write(stderr, data) :]


def record(line: str, now: datetime) -> dict[str, str]:
    """The line's record: ``time`` (UTC), ``level``, ``logger`` and ``message``, and where they are
    known ``source``, ``model`` and ``request_id``.
    """
    message, model = line, None
    if match := TRITON_LINE.match(line):
        message, is_model = _unquoted(match["message"]), match["file"].endswith(".py")
        model = _OWN_MODEL.match(message) if is_model else _MODEL.search(message)
        found = {"level": _LEVELS[match["severity"]]}
        found["logger"] = "model" if is_model else "tritonserver"
        found["source"] = f"{match['file']}:{match['line']}"
    elif line.startswith(_OUR_PREFIX):
        message = line.removeprefix(_OUR_PREFIX)
        model = _MODEL.search(message)
        found = {"level": "error" if _FAILURE.search(message) else "info", "logger": "hf-triton"}
    elif match := _OPENTELEMETRY.match(line):
        message, found = match["message"], {"level": match["level"].lower()}
        found |= {"logger": "opentelemetry", "source": match["source"]}
    else:
        found = {"level": "error" if _ERROR.match(line) else "info", "logger": "output"}
    found["message"] = message
    if model:
        found["model"] = next(filter(None, model.groups()))
    if request := _REQUEST.search(message):
        found["request_id"] = request[1]
    time = now.astimezone(timezone.utc).isoformat(timespec="milliseconds")
    return {"time": time.replace("+00:00", "Z"), **found}


def to_json(line: str, now: datetime) -> str:
    text = json.dumps(record(line, now), ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()  # half a character: as JSON escapes it


def _unquoted(message: str) -> str:
    """Triton writes most messages as JSON strings."""
    try:
        text = json.loads(message)
    except ValueError:
        return message
    return text if isinstance(text, str) else message

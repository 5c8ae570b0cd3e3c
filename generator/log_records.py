"""A line of ``serve``'s stderr as a record: who says it, how grave it is, and which model and
request it is about. Knows nothing of where lines come from.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone

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


def record(line: str, now: datetime) -> dict[str, str]:
    """The line's record: ``time`` (UTC), ``level``, ``logger`` and ``message``, and where they are
    known ``source``, ``model`` and ``request_id``.
    """
    match = TRITON_LINE.match(line)
    if match:
        found = _of_triton(match)
    elif line.startswith(_OUR_PREFIX):
        found = _of_ours(line.removeprefix(_OUR_PREFIX))
    elif match := _OPENTELEMETRY.match(line):
        found = {**match.groupdict(), "level": match["level"].lower(), "logger": "opentelemetry"}
    else:
        level = "error" if _ERROR.match(line) else "info"
        found = {"level": level, "logger": "output", "message": line}
    request = _REQUEST.search(found["message"])
    if request:
        found["request_id"] = request[1]
    time = now.astimezone(timezone.utc).isoformat(timespec="milliseconds")
    return {"time": time.replace("+00:00", "Z"), **found}


def to_json(line: str, now: datetime) -> str:
    """The record as JSON, on one line."""
    text = json.dumps(record(line, now), ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()  # half a character: as JSON escapes it


def _of_triton(match: re.Match[str]) -> dict[str, str]:
    is_model = match["file"].endswith(".py")
    message = _unquoted(match["message"])
    found = {
        "level": _LEVELS[match["severity"]],
        "logger": "model" if is_model else "tritonserver",
        "message": message,
        "source": f"{match['file']}:{match['line']}",
    }
    model = _OWN_MODEL.match(message) if is_model else _MODEL.search(message)
    if model:
        found["model"] = model[1]
    return found


def _of_ours(message: str) -> dict[str, str]:
    found = {
        "level": "error" if _FAILURE.search(message) else "info",
        "logger": "hf-triton",
        "message": message,
    }
    model = _MODEL.search(message)
    if model:
        found["model"] = model[1] or model[2]
    return found


def _unquoted(message: str) -> str:
    """Triton writes most messages as JSON strings."""
    try:
        text = json.loads(message)
    except ValueError:
        return message
    return text if isinstance(text, str) else message

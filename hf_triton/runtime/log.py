"""Writes log lines: to Triton's logger inside the server, to ``logging`` anywhere else.

Every line of a model's process begins with the model's name, once ``begin`` has set it; then with
the label of the request that it is about, as Triton's own do: ``[request id: 7] ``. Prompts,
generated tokens and secrets are never logged: a server's log is kept and read by people who may not
read its users' texts. So callers log an error's type and line (``errors.place``), not its text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

MAX_SHOWN = 64  # characters of a request's id
_LABEL = "[request id: "
_ENDS_LABEL = frozenset('"\\]')
_fallback = logging.getLogger("hf_triton")
names: list[str] = []


def begin(name: str) -> None:
    """Sets the name of the Triton model that all following lines begin with."""
    names[:] = [name]


def info(message: str) -> None:
    _write(message, "log_info", _fallback.info)


def warn(message: str, request_id: str = "") -> None:
    """One line about something that works, but not as well as it could."""
    _write(labelled(request_id, message), "log_warn", _fallback.warning)


def error(message: str, request_id: str = "") -> None:
    _write(labelled(request_id, message), "log_error", _fallback.error)


def labelled(request_id: str, text: str) -> str:
    """``text`` after the request's label; unchanged if the request has no id or the text has a
    label. A client chooses its request's id: it is shown cut, and without characters that could
    begin a new line of the log.
    """
    if not request_id or text.startswith(_LABEL):
        return text
    cut = request_id if len(request_id) <= MAX_SHOWN else f"{request_id[: MAX_SHOWN - 1]}…"
    return f"{_LABEL}{''.join(map(_shown, cut))}] {text}"


def _shown(character: str) -> str:
    if not character.isprintable():
        return character.encode("unicode_escape").decode()
    return "?" if character in _ENDS_LABEL else character


def _write(message: str, method: str, fall_back: Callable[[str], object]) -> None:
    getattr(triton_logger(), method, fall_back)(_named(message))


def _named(message: str) -> str:
    """Puts the model's name first, where neither it nor models.yaml's name stands there."""
    if not names or message.startswith(f"{names[0]}: "):
        return message
    said = message.partition(": ")[0]
    return message if names[0].startswith(f"{said}_") else f"{names[0]}: {message}"


def triton_logger() -> Any:
    """Triton's logger, or None outside of the server."""
    try:
        import triton_python_backend_utils as pb_utils
    except ImportError:
        return None
    return getattr(pb_utils, "Logger", None)

"""Writes log lines: to Triton's logger inside the server, to ``logging`` anywhere else.

Every line of a model's process begins with the model's name, once ``begin`` has set it. Prompts,
generated tokens and secrets are never logged: a server's log is kept and read by people who may not
read its users' texts. So callers log an error's type and line (``errors.place``), not its text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

_fallback = logging.getLogger("hf_triton")
_names: list[str] = []


def begin(name: str) -> None:
    """Sets the name of the Triton model that all following lines begin with."""
    _names[:] = [name]


def info(message: str) -> None:
    """One line for the operator."""
    _write(message, "log_info", _fallback.info)


def warn(message: str) -> None:
    """One line about something that works, but not as well as it could."""
    _write(message, "log_warn", _fallback.warning)


def error(message: str) -> None:
    """One line about something that failed."""
    _write(message, "log_error", _fallback.error)


def _write(message: str, method: str, fall_back: Callable[[str], object]) -> None:
    getattr(_triton_logger(), method, fall_back)(_named(message))


def _named(message: str) -> str:
    """The message after the model's name, unless it begins with that name: a streaming model's two
    folders may both write the name that models.yaml has.
    """
    if not _names or message.startswith(f"{_names[0]}: "):
        return message
    said = message.partition(": ")[0]
    return message if _names[0].startswith(f"{said}_") else f"{_names[0]}: {message}"


def _triton_logger() -> Any:
    """Triton's logger, or None outside of the server."""
    try:
        import triton_python_backend_utils as pb_utils
    except ImportError:
        return None
    return getattr(pb_utils, "Logger", None)

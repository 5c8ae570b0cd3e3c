"""One place that writes log lines: Triton's logger inside the server, ``logging`` anywhere else.

Every line of a model's process begins with the model's name, once ``begin`` has been told it. Never
prompts, never tokens, never secrets: callers pass only what an operator may read.
"""

from __future__ import annotations

import logging
from typing import Any

_fallback = logging.getLogger("hf_triton")
_names: list[str] = []


def begin(name: str) -> None:
    """From here on lines are those of the model that Triton calls ``name``."""
    _names[:] = [name]


def info(message: str) -> None:
    """One line for the operator."""
    logger, line = _triton_logger(), _named(message)
    if logger is None:
        _fallback.info(line)
    else:
        logger.log_info(line)


def warn(message: str) -> None:
    """One line about something that works, but not as well as it could."""
    logger, line = _triton_logger(), _named(message)
    if logger is None:
        _fallback.warning(line)
    else:
        logger.log_warn(line)


def error(message: str) -> None:
    """One line about something that failed."""
    logger, line = _triton_logger(), _named(message)
    if logger is None:
        _fallback.error(line)
    else:
        logger.log_error(line)


def _named(message: str) -> str:
    """The message behind the model's name, unless that is there: a model that streams is two of
    Triton's, and may call itself by what both begin with.
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

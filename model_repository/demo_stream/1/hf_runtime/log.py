"""One place that writes log lines: Triton's logger inside the server, ``logging`` anywhere else.

Never prompts, never tokens, never secrets: callers pass only what an operator may read.
"""

from __future__ import annotations

import logging
from typing import Any

_fallback = logging.getLogger("hf_triton")


def info(message: str) -> None:
    """One line for the operator."""
    logger = _triton_logger()
    if logger is None:
        _fallback.info(message)
    else:
        logger.log_info(message)


def warn(message: str) -> None:
    """One line about something that works, but not as well as it could."""
    logger = _triton_logger()
    if logger is None:
        _fallback.warning(message)
    else:
        logger.log_warn(message)


def error(message: str) -> None:
    """One line about something that failed."""
    logger = _triton_logger()
    if logger is None:
        _fallback.error(message)
    else:
        logger.log_error(message)


def _triton_logger() -> Any:
    """Triton's logger, or None outside of the server."""
    try:
        import triton_python_backend_utils as pb_utils
    except ImportError:
        return None
    return getattr(pb_utils, "Logger", None)

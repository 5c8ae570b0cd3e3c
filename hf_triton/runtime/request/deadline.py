"""A request's time limit, ``timeout_ms``, and ``on_timeout``, what happens when it passes."""

from __future__ import annotations

from ..errors import RequestError
from .tensors import shown


def timeout_ms(asked: int | None, default: int | None, ceiling: int | None) -> int | None:
    """The request's time limit, at most the ceiling, which is also the default. Raises
    RequestError.
    """
    if asked is None:
        return ceiling if default is None else default
    if asked < 1 or (ceiling is not None and asked > ceiling):
        allowed = "1 and more" if ceiling is None else f"1 to {ceiling} (max_timeout_ms)"
        raise RequestError(f"timeout_ms: got {shown(asked)}, allowed: {allowed}")
    return int(asked)


def check_on_timeout(asked: str) -> None:
    """Raises RequestError for an unknown value."""
    if asked not in ("partial", "error"):
        raise RequestError("on_timeout: got another text, allowed: partial or error")

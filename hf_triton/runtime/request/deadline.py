"""A request's ``timeout_ms`` and ``on_timeout``: how long it may take, and what follows then."""

from __future__ import annotations

from ..errors import RequestError
from .tensors import shown


def timeout_ms(asked: int | None, default: int | None, ceiling: int | None) -> int | None:
    """The request's own time, at most the ceiling; the ceiling alone is the default too. Raises
    RequestError.
    """
    if asked is None:
        return ceiling if default is None else default
    if asked < 1 or (ceiling is not None and asked > ceiling):
        allowed = "1 and more" if ceiling is None else f"1 to {ceiling} (max_timeout_ms)"
        raise RequestError(f"timeout_ms: got {shown(asked)}, allowed: {allowed}")
    return int(asked)


def check_on_timeout(asked: str) -> None:
    """Raises RequestError for what is neither of the two."""
    if asked not in ("partial", "error"):
        raise RequestError("on_timeout: got another text, allowed: partial or error")

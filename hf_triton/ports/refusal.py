"""A request that is not passed on to tritonserver."""

from __future__ import annotations

from collections.abc import Mapping

# What the gRPC port says of a method that it does not have; Triton itself has no text for that.
NO_METHOD = "got a method that this server does not have"


class RefusedError(Exception):
    """``status`` is HTTP's; the text says what was got, what is allowed and what to do.

    ``is_last``: the connection is closed after the answer, for what is left on it can't be read.
    """

    def __init__(
        self,
        status: int,
        text: str,
        headers: Mapping[str, str] | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        super().__init__(text)
        self.status, self.text = status, text
        self.headers = dict(headers or {})
        self.is_last = is_last


def refusal_of(error: BaseException) -> RefusedError:
    """What a client learns of an error: of a bug of ours no more than its kind."""
    if isinstance(error, RefusedError):
        return error
    return RefusedError(500, f"internal error of the proxy: {type(error).__name__}")

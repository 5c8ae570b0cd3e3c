"""A request that is not passed on to tritonserver."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping

from generator.render.model_config import LACKED_HERE

# The headers with the admin key; gRPC's is as Triton's own restricted calls have it.
HTTP_ADMIN_HEADER = "hf-triton-admin-key"
GRPC_ADMIN_HEADER = f"triton-grpc-protocol-{HTTP_ADMIN_HEADER}"


class RefusedError(Exception):
    """``status`` is HTTP's; the text says what was got, what is allowed and what to do."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text = status, text
        self.headers = dict(headers or {})


def refusal_of(error: BaseException) -> RefusedError:
    """Returns the answer to an error: for a bug of ours one that names no more than its kind."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, OSError) and error.errno in LACKED_HERE:
        text = f"the server lacks a resource ({os.strerror(error.errno)}): try again later"
        return RefusedError(503, text, {"Retry-After": "1"})
    return RefusedError(500, f"internal error: {type(error).__name__}")


def report_bug(failed: str, error: BaseException | None) -> None:
    """Reports an error by its type and place: its message could quote a request."""
    frames = traceback.extract_tb(error.__traceback__) if error else None
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
    sys.stderr.write(f"hf-triton: {failed}: {type(error).__name__} at {place}\n")

"""A request that is not passed on to tritonserver."""

from __future__ import annotations

import os
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
    return RefusedError(500, f"internal error of the proxy: {type(error).__name__}")


def needs_admin_key(header: str) -> RefusedError:
    return RefusedError(
        403,
        f"This protocol is restricted: it needs the header {header} with the admin key "
        "(HF_TRITON_ADMIN_KEY or --admin-key-file), or a server with --open-admin-apis",
    )

"""Triton's APIs that need the admin key, for which tritonserver itself asks, and the one of them
that only reads and tells nothing that is not open anyway: the index of the repository.
"""

from __future__ import annotations

from hf_triton.ports.refusal import RefusedError
from hf_triton.tritonserver.http_api import ADMIN_KEY_HEADER, HEADER_PREFIX

HTTP_HEADER = ADMIN_KEY_HEADER.encode()
GRPC_HEADER = (HEADER_PREFIX + ADMIN_KEY_HEADER).encode()


def needs_key(header: bytes) -> RefusedError:
    """What is said to who sends no admin key."""
    return RefusedError(
        403,
        f"This protocol is restricted: it needs the header {header.decode()} with the admin key "
        "(HF_TRITON_ADMIN_KEY or --admin-key-file), or a server with --open-admin-apis",
    )

"""The gRPC connection to tritonserver by which a port asks it something itself."""

from __future__ import annotations

from typing import Any

import grpc

QUESTION_TIMEOUT_S = 5.0
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A Triton that comes back is found within a second, however long it was away.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A test or a second port in this process has its own connection.
    ("grpc.use_local_subchannel_pool", 1),
    # Prompts are not for the proxy that the environment may name for what is outside.
    ("grpc.enable_http_proxy", 0),
]


def triton_channel(address: str) -> Any:
    """Used within one event loop; to be closed in the end."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)

"""The timeout that a ModelInferRequest asks for."""

from __future__ import annotations

import math
from typing import Any

_TIMEOUT = "timeout_ms"


def timeout_s_of(request: Any) -> float:
    """In seconds; infinite where it asks for none, or for none that is a number."""
    if _TIMEOUT in request.parameters:
        return _seconds(request.parameters[_TIMEOUT].int64_param)
    for place, tensor in enumerate(request.inputs):
        if tensor.name == _TIMEOUT:
            listed = tensor.contents.int_contents
            if listed:
                return _seconds(listed[0])
            if place < len(request.raw_input_contents):
                raw = request.raw_input_contents[place]
                return _seconds(int.from_bytes(raw[:4], "little", signed=True))
    return math.inf


def _seconds(timeout_ms: int) -> float:
    return timeout_ms / 1000 if timeout_ms > 0 else math.inf

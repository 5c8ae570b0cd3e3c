"""The trace that a request is a part of: passed on to Triton, which goes on with it.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re

from aiohttp import web

Metadata = tuple[tuple[str, str], ...]

_NAMES = ("traceparent", "tracestate")
_VALUE = re.compile(r"[ -~]{1,512}")


def trace_context(request: web.Request) -> Metadata:
    """The headers of a trace, as gRPC's metadata; none where they are none of the standard's."""
    given = ((name, request.headers.get(name, "")) for name in _NAMES)
    return tuple((name, value) for name, value in given if _VALUE.fullmatch(value))

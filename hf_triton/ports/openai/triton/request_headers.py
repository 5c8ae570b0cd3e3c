"""What a request's headers say beside its body: its id, X-Request-Id, in and out, and the trace
that it is a part of, which Triton goes on with (https://www.w3.org/TR/trace-context/).
"""

from __future__ import annotations

import re
import uuid

from aiohttp import web

HEADER = "X-Request-Id"
_ANTHROPICS = "request-id"  # where Anthropic's packages look
_KEY = web.RequestKey("hf_triton_request_id", str)
# One word that can stand in a log line and in a label; any other is as if none had been sent.
_WORD = re.compile(r"[!#-Z^-~]{1,128}")
_LABEL = re.compile(r"\[request id: [^\]]*\] ")
Metadata = tuple[tuple[str, str], ...]
_NAMES = ("traceparent", "tracestate")
_VALUE = re.compile(r"[ -~]{1,512}")


def id_of(request: web.Request, own: str = "") -> str:
    """The id that the client sent; else ``own``, else a new one. The same from then on."""
    if _KEY not in request:
        given = request.headers.get(HEADER, "")
        is_word = _WORD.fullmatch(given) is not None
        request[_KEY] = given if is_word else own or f"req-{uuid.uuid4().hex}"
    return request[_KEY]


async def send_id(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the header to whatever is answered."""
    response.headers.update(dict.fromkeys((HEADER, _ANTHROPICS), id_of(request)))


def without_label(text: str) -> str:
    """A text of Triton's or a model's without the id before it, which the header has."""
    return _LABEL.sub("", text)


def trace_context(request: web.Request) -> Metadata:
    """The headers of a trace, as gRPC's metadata; none where they are none of the standard's."""
    given = ((name, request.headers.get(name, "")) for name in _NAMES)
    return tuple((name, value) for name, value in given if _VALUE.fullmatch(value))

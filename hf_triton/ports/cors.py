"""Answers to pages of other origins: https://fetch.spec.whatwg.org/#http-cors-protocol."""

from __future__ import annotations

from hf_triton.ports.settings import Access

# Clients of OpenAI's API read some headers, to retry, to wait and to report an answer.
_READABLE = {"Access-Control-Expose-Headers": "*"}
_USUAL_HEADERS = "Authorization, Content-Type"


def allows(access: Access, origin: str | None) -> bool:
    """True if pages of ``origin`` may read answers."""
    return origin is not None and bool({"*", origin} & set(access.cors))


def headers(access: Access, origin: str | None) -> dict[str, str]:
    """The CORS headers of an answer to ``origin``. If only some origins may read it, every answer
    tells caches so (``Vary``).
    """
    every = "*" in access.cors
    found = {"Vary": "Origin"} if access.cors and not every else {}
    if origin is None or not allows(access, origin):
        return found
    return {**found, "Access-Control-Allow-Origin": "*" if every else origin, **_READABLE}


def preflight(wanted: str | None) -> dict[str, str]:
    """The answer to what a browser asks before it sends a request with the ``wanted`` headers."""
    return {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": wanted or _USUAL_HEADERS,
        "Access-Control-Max-Age": "3600",
    }

"""Answers to pages of other origins: https://fetch.spec.whatwg.org/#http-cors-protocol."""

from __future__ import annotations

from generator.proxy.settings import Access

# What clients of OpenAI's API read of an answer, to try again and to tell of it.
_READABLE = {"Access-Control-Expose-Headers": "Retry-After, X-Request-Id"}
_USUAL_HEADERS = "Authorization, Content-Type"


def headers(access: Access, origin: str | None) -> dict[str, str]:
    """Those of an answer to a request of ``origin``; none where its pages may not read it."""
    if origin is None or not {"*", origin} & set(access.cors):
        return {}
    if "*" in access.cors:
        return {"Access-Control-Allow-Origin": "*", **_READABLE}
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", **_READABLE}


def lines(access: Access, origin: str | None) -> bytes:
    """The same as they are sent."""
    found = headers(access, origin)
    return "".join(f"{name}: {value}\r\n" for name, value in found.items()).encode("latin-1")


def preflight(wanted: str | None) -> dict[str, str]:
    """The answer to what a browser asks before it sends a request with the ``wanted`` headers."""
    return {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": wanted or _USUAL_HEADERS,
        "Access-Control-Max-Age": "3600",
    }

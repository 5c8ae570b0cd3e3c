"""Answers to pages of other origins: https://fetch.spec.whatwg.org/#http-cors-protocol."""

from __future__ import annotations

from generator.proxy.http_request import Request
from generator.proxy.settings import Access

_USUAL_HEADERS = b"Authorization, Content-Type"


def headers(access: Access, request: Request) -> bytes:
    """The header lines for a request's answer; empty where its origin may not read it."""
    origin = request.noted.get(b"origin")
    if not access.cors or origin is None:
        return b""
    if "*" in access.cors:
        return b"Access-Control-Allow-Origin: *\r\n"
    if origin.decode("latin-1") not in access.cors:
        return b""
    return b"Access-Control-Allow-Origin: " + origin + b"\r\nVary: Origin\r\n"


def preflight(request: Request) -> dict[str, str]:
    """The answer to what a browser asks before it sends the request itself."""
    wanted = request.noted.get(b"access-control-request-headers", _USUAL_HEADERS)
    return {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": wanted.decode("latin-1"),
        "Access-Control-Max-Age": "3600",
    }

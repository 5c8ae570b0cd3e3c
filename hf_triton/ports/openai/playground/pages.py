"""The page's files. They hold no secret and are sent without a key; what the page asks needs one,
as every request does.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

_FOLDER = Path(__file__).with_name("page")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_INDEX = "index.html"
ROOT = "/playground/"
PATHS = frozenset({ROOT[:-1], ROOT, *(ROOT + file.name for file in _FOLDER.iterdir())})
# Nothing of another origin is loaded, asked or framed; no text becomes markup or a script.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def page(request: web.Request) -> web.Response:
    """One of PATHS."""
    if request.path == ROOT[:-1]:
        return web.Response(status=308, headers={**_HEADERS, "Location": ROOT[1:]})
    file = _FOLDER / (request.path.removeprefix(ROOT) or _INDEX)
    return web.Response(
        body=file.read_bytes(),
        headers=_HEADERS,
        content_type=_TYPES[file.suffix],
        charset="utf-8",
    )

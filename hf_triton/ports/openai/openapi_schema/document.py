"""What routes take and answer, as their modules declare it, and the OpenAPI document of them:
https://spec.openapis.org/oas/v3.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from hf_triton.ports.openai.schema.errors import HUBS_STATUSES, Error, HubError

JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"
FORM, FILE = "multipart/form-data", "application/octet-stream"
_STATUSES = {
    400: "A field is not as it must be",
    401: "Without a key that is known",
    403: "Without the admin key, or what models.yaml does not allow",
    404: "No such model, or none of this path's task",
    408: "The body did not come in time",
    413: "The body is too large",
    415: "The body is encoded, or of another type",
    429: "Beyond the caller's limits: see Retry-After",
    500: "The model failed",
    501: "Not done by this Triton",
    503: "Not ready, or too busy: see Retry-After",
    504: "Triton takes too long",
}
_TEXT = {"type": "string"}
# One of a stream; a client reads its data as JSON, but for OpenAI's last, which is [DONE].
_EVENT = {"type": "object", "properties": {"event": _TEXT, "data": _TEXT}, "required": ["data"]}
_VARIABLE = re.compile(r"\{(\w+)(:[^}]*)?\}")
_REF = "#/components/schemas/{name}"
Json = dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """``answer`` is the type of a 200's JSON, None where there is none; ``body`` is a Struct, or a
    tuple of those of which a request has one; ``also`` are the media types of other answers.
    ``takes_file`` where a file may come in the place of the body.
    """

    summary: str
    answer: Any = None
    body: Any = None
    also: tuple[str, ...] = ()
    takes: str = JSON
    takes_file: bool = False
    error: type[Struct] = Error

    @property
    def bodies(self) -> tuple[type[Struct], ...]:
        """Those of which a request has one."""
        return self.body if isinstance(self.body, tuple) else (self.body,) if self.body else ()


@dataclass(frozen=True)
class Route:
    """One path; without a ``method`` GET where nothing is sent."""

    path: str
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    operation: Operation
    method: str = ""

    def __post_init__(self) -> None:
        if not self.method:
            object.__setattr__(self, "method", "POST" if self.operation.body else "GET")


def document(routes: Sequence[Route]) -> Json:
    """The document, as JSON."""
    operations = [route.operation for route in routes]
    told = (one for op in operations for one in (op.answer, op.error, *op.bodies))
    types = {one for one in told if one is not None}
    listed = sorted(types, key=str)
    references, components = msgspec.json.schema_components(listed, ref_template=_REF)
    known = dict(zip(listed, references, strict=True))
    paths: Json = {}
    for route in routes:
        path = _VARIABLE.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, known)
    keys = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "hf-triton, OpenAI's API", "version": "1"},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": keys}},
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, known: dict[type, Any]) -> Json:
    operation = route.operation
    path = _VARIABLE.sub(r"\1", route.path)
    name = f"{route.method.lower()}_{path.strip('/')}"
    failed = {JSON: {"schema": known[operation.error]}}
    statuses = HUBS_STATUSES if operation.error is HubError else {}
    found: Json = {
        "operationId": re.sub(r"\W+", "_", name),
        "summary": operation.summary,
        "responses": {
            "200": {"description": "The answer", "content": _answers(operation, known)},
            **{
                str(statuses.get(status, status)): {"description": text, "content": failed}
                for status, text in _STATUSES.items()
            },
        },
    }
    variables = [variable[1] for variable in _VARIABLE.finditer(route.path)]
    if variables:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in variables
        ]
    if operation.body:
        bodies = [known[one] for one in operation.bodies]
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        content: Json = {operation.takes: {"schema": schema}}
        if operation.takes_file:
            content[FILE] = {"schema": {"type": "string", "format": "binary"}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _answers(operation: Operation, known: dict[type, Any]) -> Json:
    whole = {JSON: {"schema": known[operation.answer]}} if operation.answer else {}
    also = {kind: {"schema": _EVENT if kind == EVENTS else _TEXT} for kind in operation.also}
    return {**whole, **also}

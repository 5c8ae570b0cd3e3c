"""OpenAPI 3.1 of routes (https://spec.openapis.org/oas/v3.1.0)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from hf_triton.ports.openai.schema.errors import error_type

JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"
FORM = "multipart/form-data"
_TEXT = {"type": "string"}
# One of a stream; a client reads its data as JSON, but for OpenAI's last, which is [DONE].
_EVENT = {"type": "object", "properties": {"event": _TEXT, "data": _TEXT}, "required": ["data"]}
_VARIABLE = re.compile(r"\{(\w+)(:[^}]*)?\}")
_REF = "#/components/schemas/{name}"
Json = dict[str, Any]


@dataclass(frozen=True)
class Operation:
    summary: str
    answer: Any = None  # the type of a 200's JSON; None for none
    body: Any = None  # a Struct, or a tuple of those of which a request has one
    also: tuple[str, ...] = ()  # media types of other answers
    takes: str = JSON

    @property
    def bodies(self) -> tuple[type[Struct], ...]:
        return self.body if isinstance(self.body, tuple) else (self.body,) if self.body else ()


@dataclass(frozen=True)
class Route:
    """One path; without a ``method`` it is POST with a body and else GET."""

    path: str
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    operation: Operation
    method: str = ""

    def __post_init__(self) -> None:
        if not self.method:
            object.__setattr__(self, "method", "POST" if self.operation.body else "GET")


def document(routes: Sequence[Route]) -> Json:
    types: set[Any] = {error_type(route.path) for route in routes}
    for operation in (route.operation for route in routes):
        types |= {operation.answer, *operation.bodies} - {None}
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
    failed = {JSON: {"schema": known[error_type(route.path)]}}
    answers = {JSON: {"schema": known[operation.answer]}} if operation.answer else {}
    for kind in operation.also:
        answers[kind] = {"schema": _EVENT if kind == EVENTS else _TEXT}
    found: Json = {
        "operationId": re.sub(r"\W+", "_", name),
        "summary": operation.summary,
        "parameters": [
            {"name": variable[1], "in": "path", "required": True, "schema": _TEXT}
            for variable in _VARIABLE.finditer(route.path)
        ],
        "responses": {
            "200": {"description": "The answer", "content": answers},
            "default": {"description": "An error, which names the field", "content": failed},
        },
    }
    if operation.body:
        bodies = [known[one] for one in operation.bodies]
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        content = {operation.takes: {"schema": schema}}
        found["requestBody"] = {"required": True, "content": content}
    return found

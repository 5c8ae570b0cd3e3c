"""What a route takes and answers, as its module declares it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from msgspec import Struct

from hf_triton.ports.openai.schema.errors import Error

JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"
FORM, FILE = "multipart/form-data", "application/octet-stream"


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

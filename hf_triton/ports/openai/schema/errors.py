"""Errors of OpenAI's API and of Hugging Face's servers. Knows no HTTP library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from hf_triton.ports.refusal import RefusedError

_RETRY_AFTER_S = 1
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 503: "unavailable"}
# What the clients of OpenAI and Anthropic obey.
_NO_RETRY = {"x-should-retry": "false"}


# Before the paths of one model, of which TGI and TEI have no more: /models/NAME/generate.
OF_MODEL = "/models/"
OPENAIS = "/v1/"  # that both servers have too, with OpenAI's errors
_HUBS_PATHS = frozenset(
    (
        *("/", "/generate", "/generate_stream", "/info", "/predict", "/similarity"),
        *("/embed", "/embed_all", "/embed_sparse"),
    )
)
# Their statuses by OpenAI's, and their words, by which clients choose an exception.
HUBS_STATUSES = {400: 422, 500: 424, 503: 429}
_HUBS_TYPES = {422: "validation", 424: "generation", 429: "overloaded", 504: "generation"}


class ErrorText(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Struct):
    error: ErrorText


class HubError(Struct):
    error: str
    error_type: str


@dataclass(eq=False)
class ApiError(Exception):
    """What a client is told; the openai package raises an exception of its own per status."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    more_headers: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)  # of Anthropic's errors
    stays: bool = False  # whether asking again is of no use, though it is a 503

    def body(self) -> Error:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return Error(ErrorText(self.message, kind, self.param, self.code))

    @property
    def hubs_status(self) -> int:
        return HUBS_STATUSES.get(self.status, self.status)

    def hubs_body(self) -> HubError:
        names_none = self.param == "model" and self.message.startswith("model: got none")
        hint = f"; name one as model, or ask {OF_MODEL}NAME" if names_none else ""
        return HubError(self.message + hint, _HUBS_TYPES.get(self.hubs_status, "request"))

    def headers(self) -> dict[str, str]:
        again = {"Retry-After": str(_RETRY_AFTER_S)} if self.status == 503 else {}
        return {**(_NO_RETRY if self.stays else again), **self.more_headers}


def of_refusal(refusal: RefusedError) -> ApiError:
    where = "Authorization: " if refusal.status == 401 else ""
    code = _CODES.get(refusal.status)
    return ApiError(refusal.status, f"{where}{refusal.text}", None, code, refusal.headers)


def is_hubs(path: str) -> bool:
    return path in _HUBS_PATHS or (path.startswith(OF_MODEL) and OPENAIS not in path)


def bad_field(name: str, got: str, allowed: str) -> ApiError:
    """A field that is not as it should be; ``got`` never quotes a text."""
    return ApiError(400, f"{name}: got {got}, allowed: {allowed}", name)


def model_not_found(name: str, served: list[str]) -> ApiError:
    allowed = ", ".join(served) or "none, no model is ready"
    message = f"model: '{name[:100]}' does not exist or is not ready, allowed: {allowed}"
    return ApiError(404, message, param="model", code="model_not_found")


def model_is_loading(name: str) -> ApiError:
    message = f"model: '{name[:100]}' is being loaded; try again"
    return ApiError(503, message, param="model", code="unavailable")

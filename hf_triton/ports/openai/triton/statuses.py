"""Triton's errors as OpenAI's: by their gRPC status, or, on a stream, by their text alone. Fields
have the models' names in them.

On a stream Triton sends no status with an error. The models' own texts tell: one about the request
begins with the field it is about, one about load says to try again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import grpc

from hf_triton.ports.openai.schema.errors import ApiError, of_refusal
from hf_triton.ports.openai.schema.names import HEAD
from hf_triton.ports.openai.triton.request_headers import without_label
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.repeats import UNREACHABLE
from hf_triton.ports.triton_calls import is_unreachable
from hf_triton.tritonserver.triton_texts import NOT_FOUND

_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.CANCELLED: 503,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.UNIMPLEMENTED: 501,
}
_CODES = {503: "unavailable", 404: "model_not_found"}
_UNAVAILABLE = re.compile(
    r"try again|shutting down|not ready|no available versions|not healthy|unavailable",
    re.IGNORECASE,
)
# Of a prompt that the model's context does not hold.
_TOO_LONG = re.compile(r"\w+: the prompt has ((\d+).*); this model's context holds (\d+)")
# Of one that is so long that its tokens are not counted.
_FAR_TOO_LONG = re.compile(
    r"(text_input|messages): (got \d+ characters, allowed: at most \d+(?: where \d+ tokens fit)?)$"
)
_CONTEXT = "context_length_exceeded"
# Of a tensor that models of another task have.
_NO_INPUT = re.compile(r"unexpected inference input '(\w+)' for model")


@contextlib.contextmanager
def errors_translated() -> Iterator[None]:
    """Raises ApiError for what asking Triton raises."""
    try:
        yield
    except RefusedError as refusal:
        raise of_refusal(refusal) from None
    except grpc.aio.AioRpcError as error:
        if is_unreachable(error):
            raise ApiError(503, UNREACHABLE, code="unavailable") from None
        text = without_label(error.details() or "") or f"Triton answers {error.code().name}"
        raise _error(_STATUSES.get(error.code(), 500), text) from None


def of_text(text: str) -> ApiError:
    """The error for the text that a stream ended with."""
    text = without_label(text)
    if HEAD.match(text):
        return _error(400, text)
    if NOT_FOUND.search(text):
        return _error(404, text)
    return _error(503 if _UNAVAILABLE.search(text) else 500, text)


def _error(status: int, text: str) -> ApiError:
    unknown = _NO_INPUT.search(text)
    if unknown:
        is_chat = unknown[1] == "messages"
        why = "reads texts, not chats; send text_input" if is_chat else "takes none"
        return _error(400, f"{unknown[1]}: this model {why}")
    too_long = _TOO_LONG.match(text)
    if too_long:
        return _context_length_exceeded(*too_long.groups())
    far_too_long = _FAR_TOO_LONG.match(text)
    if far_too_long:
        field, why = far_too_long.groups()
        return ApiError(400, f"{field}: the prompt is too long: {why}", field, _CONTEXT)
    found = HEAD.match(text) if status == 400 else None
    return ApiError(status, text, found and (found[1] or found[2]), _CODES.get(status))


def _context_length_exceeded(got: str, num_tokens: str, most: str) -> ApiError:
    """OpenAI's own words and code, and Anthropic's "prompt is too long", by which clients know it
    and ask for less. It is about max_tokens where the prompt alone would fit.
    """
    param = "max_tokens" if int(num_tokens) < int(most) else "text_input"
    more = f"it has {got}" if param == "max_tokens" else f"{num_tokens} tokens > {most} maximum"
    text = (
        f"This model's maximum context length is {most} tokens. However, the prompt is too long: "
        f"{more}. Please reduce the length of the prompt or of the answer."
    )
    return ApiError(400, text, param, _CONTEXT)

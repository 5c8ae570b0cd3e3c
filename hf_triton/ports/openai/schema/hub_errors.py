"""Errors as Hugging Face's servers have them, text-generation-inference and
text-embeddings-inference, on the paths that are theirs.
"""

from __future__ import annotations

from hf_triton.ports.openai.schema.errors import ApiError

# Before the paths of one model, of which these servers have no more: /models/NAME/generate.
OF_MODEL = "/models/"
OPENAIS = "/v1/"  # that both servers have too, with OpenAI's errors
_PATHS = frozenset(
    (
        *("/", "/generate", "/generate_stream", "/info", "/predict", "/similarity"),
        *("/embed", "/embed_all", "/embed_sparse"),
    )
)
# Their statuses by OpenAI's, and their words, by which clients choose an exception.
STATUSES = {400: 422, 500: 424, 503: 429}
_TYPES = {422: "validation", 424: "generation", 429: "overloaded", 504: "generation"}


def is_under(path: str) -> bool:
    """Whether a path is one of theirs."""
    return path in _PATHS or (path.startswith(OF_MODEL) and OPENAIS not in path)


def status_of(error: ApiError) -> int:
    """Theirs."""
    return STATUSES.get(error.status, error.status)


def error_body(error: ApiError) -> dict[str, str]:
    """Their error object."""
    names_none = error.param == "model" and error.message.startswith("model: got none")
    hint = f"; name one as model, or ask {OF_MODEL}NAME" if names_none else ""
    kind = _TYPES.get(status_of(error), "request")
    return {"error": error.message + hint, "error_type": kind}

"""Tries one sample request before a model serves, so that a model that can't answer fails its load.
The request is the one in `serve`'s curl lines; if it is refused, one with a text of known tokens.
It bypasses hooks and caches. Inputs that only a caller can know, such as a target language, do not
fail the load.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.cache_salt import CACHE_SALT
from hf_triton.runtime.request.plain_request import PlainRequest
from hf_triton.runtime.request.responder import status_and_text
from hf_triton.runtime.request.sample_values import SAMPLE_MASK, Value, sample_values, sound
from hf_triton.runtime.weights.served_model import ServedModel

_LONGEST_S = 600.0
_MOST_TOKENS_TRIED = 200  # tokens to try
_TEXTS = ("text_input", "inputs", "question", "context")
_ONE_TOKEN = {"max_tokens": 1}
_GENERATING = (
    *("text-generation", "text2text-generation", "automatic-speech-recognition"),
    *("image-text-to-text", "audio-text-to-text"),
)
# Pipelines that compute for minutes or have no sample input.
_UNTRIED = (
    *("mask-generation", "text-to-audio", "any-to-any", "keypoint-matching", "decision"),
    *("document-question-answering", "table-question-answering"),
)


class _Outcome:
    """The responder of the trial request; records how it ended."""

    request_id = ""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: Exception | None = None

    def send(self, outputs: Mapping[str, npt.NDArray[Any]], *, final: bool) -> None:
        if final:
            self.ended.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.ended.set()

    def is_cancelled(self) -> bool:
        return False


def try_one(
    serving: Any, served: ServedModel, inputs: tuple[str, ...], outputs: Iterable[str]
) -> None:
    """Returns when a Serving has answered a request. ``inputs`` and ``outputs`` are the model's
    tensors.

    Raises:
        LoadError: none can be.
    """
    error: Exception | None = None
    for values in _samples(serving.tokenizer, served, inputs):
        outcome = _Outcome()
        serving.take(_request(served, values), tuple(outputs), outcome, may_stream=False)
        if not outcome.ended.wait(_LONGEST_S):
            raise LoadError(f"a first request is not answered within {_LONGEST_S:.0f} s")
        error = outcome.error
        if error is None or not _tells_of_the_model(error):
            return
    if error is not None:
        raise LoadError(f"it can't answer a first request: {status_and_text(error)[1]}") from error


def _tells_of_the_model(error: Exception) -> bool:
    """Whether a failure is the model's fault: options may refuse the sample image, and a required
    input may be missing from the sample.
    """
    status, text = status_and_text(error)
    refuses_text = isinstance(error, RequestError) and text.partition(":")[0] in _TEXTS
    return refuses_text or status == "INTERNAL"


def _samples(
    tokenizer: Any, served: ServedModel, inputs: tuple[str, ...]
) -> Iterator[dict[str, Value]]:
    """The values to try in order; none for users' own tasks and for ensemble steps without
    texts.
    """
    pipeline = str(served.options.get("pipeline"))
    if served.role not in ("whole", "tokenizer") or pipeline in _UNTRIED:
        return
    values = sample_values(served.task, pipeline, inputs[0])
    if values is None:
        return
    if "audio" in values:
        values["audio"] = sound(8000)  # a second: some models hear nothing in less
    mask = getattr(tokenizer, "mask_token", None) or SAMPLE_MASK
    yield {name: _with_mask(value, mask) for name, value in values.items()}
    known = mask if _has_mask(values) else _known_text(tokenizer)
    if known:
        yield {**values, **{name: known for name in _TEXTS if name in values}}


def _has_mask(values: Mapping[str, Value]) -> bool:
    return any(isinstance(value, str) and SAMPLE_MASK in value for value in values.values())


def _with_mask(value: Value, mask: str) -> Value:
    return value.replace(SAMPLE_MASK, mask) if isinstance(value, str) else value


def _known_text(tokenizer: Any) -> str:
    """The text of a token that is not special; empty if there is none."""
    if tokenizer is None:
        return ""
    special = set(tokenizer.all_special_ids)
    ids = [
        token_id for token_id in sorted(tokenizer.get_vocab().values()) if token_id not in special
    ]
    texts = (str(tokenizer.decode([token_id])).strip() for token_id in ids[:_MOST_TOKENS_TRIED])
    return next((text for text in texts if text.isalnum()), "")


def _request(served: ServedModel, values: Mapping[str, Value]) -> PlainRequest:
    """The trial request, whose results are not shared; a generating model is asked for one
    token.
    """
    parameters: dict[str, Any] = {CACHE_SALT: secrets.token_hex()}
    if served.task in _GENERATING:
        parameters |= _ONE_TOKEN
    elif served.options.get("pipeline") in ("text-generation", "image-text-to-text"):
        parameters["max_new_tokens"] = 1
    return PlainRequest(
        {name: _array(value, served.max_batch_size > 0) for name, value in values.items()},
        parameters,
    )


def _array(value: Value, batched: bool) -> npt.NDArray[Any]:
    """All samples are texts: (number of texts,), in a batch (1, number of texts)."""
    texts = value if isinstance(value, list) else [value]
    found = np.array([str(text).encode() for text in texts], dtype=np.object_)
    return found[np.newaxis] if batched else found

"""Tries one sample request before a model serves, so that a model that can't answer fails its load:
the one in `serve`'s curl lines, and if it is refused, one with a text of known tokens. Inputs that
only a caller can know, such as a target language, do not fail the load.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.request_parameters import CACHE_SALT
from hf_triton.runtime.request.responder import attempt, status_and_text, strings
from hf_triton.runtime.request.sample_values import SAMPLE_MASK, Value, sample_values, sound
from hf_triton.runtime.weights.served_model import ServedModel

_LONGEST_S = 600.0
_MOST_TOKENS_TRIED = 200  # tokens to try
_TEXTS = ("text_input", "inputs", "question", "context")
_GENERATING = (
    *("text-generation", "text2text-generation", "automatic-speech-recognition"),
    *("image-text-to-text", "audio-text-to-text"),
)
# Pipelines that compute for minutes or have no sample input.
_UNTRIED = (
    *("mask-generation", "text-to-audio", "any-to-any", "keypoint-matching", "decision"),
    *("document-question-answering", "table-question-answering"),
)


class _Outcome(Future[None]):
    """A responder; the last response ends it."""

    request_id = ""

    def send(self, outputs: Mapping[str, npt.NDArray[Any]], *, final: bool) -> None:
        if final:
            self.set_result(None)

    def fail(self, error: Exception) -> None:
        self.set_exception(error)

    def is_cancelled(self) -> bool:
        return False


def try_one(
    serving: Any, served: ServedModel, inputs: tuple[str, ...], outputs: Iterable[str]
) -> None:
    """Returns when a Serving has answered a request; raises LoadError where it answers none."""
    error: Any = None
    for values in _samples(serving.tokenizer, served, inputs):
        outcome = _Outcome()
        attempt(outcome, serving.take, _request(served, values, outcome, tuple(outputs)))
        if wait([outcome], _LONGEST_S).not_done:
            raise LoadError(f"a first request is not answered within {_LONGEST_S:.0f} s")
        error = outcome.exception()
        if error is None or not _tells_of_the_model(error):
            return
    if error is not None:
        raise LoadError(f"it can't answer a first request: {status_and_text(error)[1]}") from error


def _tells_of_the_model(error: Exception) -> bool:
    """False where options refuse the sample image, or the sample lacks a required input."""
    status, text = status_and_text(error)
    refuses_text = isinstance(error, RequestError) and text.partition(":")[0] in _TEXTS
    return refuses_text or status == "INTERNAL"


def _samples(
    tokenizer: Any, served: ServedModel, inputs: tuple[str, ...]
) -> Iterator[dict[str, Value]]:
    """The values to try; none for users' own tasks and for ensemble steps without texts."""
    pipeline = str(served.options.get("pipeline"))
    if served.role not in ("whole", "tokenizer") or pipeline in _UNTRIED:
        return
    values = sample_values(served.task, pipeline, inputs[0])
    if values is None:
        return
    if "audio" in values:
        values = {**values, "audio": sound(8000)}  # a second: some models hear nothing in less
    mask = getattr(tokenizer, "mask_token", None) or SAMPLE_MASK
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    masked = {name: text for name, text in texts.items() if SAMPLE_MASK in text}
    yield {**values, **{name: text.replace(SAMPLE_MASK, mask) for name, text in masked.items()}}
    known = mask if masked else _known_text(tokenizer)
    if known:
        yield {**values, **{name: known for name in _TEXTS if name in values}}


def _known_text(tokenizer: Any) -> str:
    """The text of a token that is not special; empty if there is none."""
    if tokenizer is None:
        return ""
    ids = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    texts = (str(tokenizer.decode([token_id])).strip() for token_id in ids[:_MOST_TOKENS_TRIED])
    return next((text for text in texts if text.isalnum()), "")


def _request(
    served: ServedModel, values: Mapping[str, Value], outcome: _Outcome, outputs: tuple[str, ...]
) -> Request:
    """The trial request, whose results are not shared; a generating model makes one token."""
    parameters: dict[str, Any] = {CACHE_SALT: secrets.token_hex()}
    if served.task in _GENERATING:
        parameters["max_tokens"] = 1
    elif served.options.get("pipeline") in ("text-generation", "image-text-to-text"):
        parameters["max_new_tokens"] = 1
    inputs = {}
    for name, value in values.items():  # all samples are texts: (num_texts,), or (1, num_texts)
        texts = [str(text) for text in (value if isinstance(value, list) else [value])]
        inputs[name] = strings(texts)[np.newaxis] if served.max_batch_size > 0 else strings(texts)
    return Request(inputs, parameters, outcome, outputs)

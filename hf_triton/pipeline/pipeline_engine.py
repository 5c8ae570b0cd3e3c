"""Calls one loaded transformers pipeline with waiting inputs, as the steps of an engine's thread:
neither a pipeline nor its tokenizer is thread-safe. Requests with equal parameters share a call
where batches are wanted; long requests take turns with the others.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hf_triton.runtime.engine.work_engine import WorkEngine
from hf_triton.runtime.errors import EngineError, RequestError, RuntimeModelError, reason
from hf_triton.runtime.tokenizing.lengths import (
    NO_LIMIT,
    check_characters,
    num_characters,
    num_positions,
)

from .items import ChatMessages

# Raised by transformers' own checks of inputs and parameters.
_CALLERS_FAULTS = (ValueError, TypeError, LookupError, AttributeError, AssertionError)
# Given a list of one input, these pipelines return its result without the list.
_UNWRAPS_ONE = ("fill-mask", "keypoint-matching", "table-question-answering")
# These pipelines take a list of {"images", "text"} for a chat, so they are called once per input.
_ONE_BY_ONE = ("image-text-to-text", "any-to-any")
_MOST_TOKENS = 2**14  # characters of a text that is cut, or read in windows
_CUTTING_PARAMETER = {"fill-mask": "tokenizer_kwargs", "text-generation": "tokenizer_encode_kwargs"}
_MAY_CUT = ("truncation", "tokenizer_kwargs", "tokenize_kwargs", "tokenizer_encode_kwargs")


@dataclass(frozen=True, eq=False)
class PipelineInput:
    """One input with its call's parameters; ``key`` is equal where the parameters are, ``where``
    names its place in a list of inputs.
    """

    item: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""
    where: str = ""


class PipelineEngine(WorkEngine):
    """``load`` returns the pipeline; it runs on the engine's thread, like every method."""

    def __init__(self, name: str, load: Callable[[], Any], *, batch_size: int, **more: Any) -> None:
        """``more`` as of WorkEngine."""
        super().__init__("pipeline", batch_size, **more)
        self._name, self._load = name, load

    def prepare(self) -> None:
        self.pipe = pipe = self._load()
        self._chat = getattr(importlib.import_module(type(pipe).__module__), "Chat", None)
        self._max_length = _max_length(self._name, pipe)

    def key(self, item: PipelineInput) -> str:
        return item.key

    def compute(self, items: Sequence[PipelineInput]) -> list[Any]:
        refusals = [self._refusal(given) for given in items]
        good = [given for given, refusal in zip(items, refusals, strict=True) if not refusal]
        results = iter(self.results(good) if good else ())
        if self.pipe.device.type == "cpu":
            self.thread.cpu_threads.computes(len(good))
        return [refusal or next(results) for refusal in refusals]

    def _refusal(self, given: PipelineInput) -> RuntimeModelError | None:
        try:
            self.check(given)
        except RequestError as error:
            return self.failure(given, error)
        return None

    def failure(self, item: PipelineInput, error: BaseException) -> RuntimeModelError:
        """Names the input's place in a list."""
        if isinstance(error, RuntimeModelError):
            return type(error)(f"{item.where}{error}")
        text = f"{item.where}the {self._name} pipeline: {type(error).__name__}: {reason(error)}"
        # A CUDA failure may come as any of torch's errors.
        own = isinstance(error, _CALLERS_FAULTS) or type(error).__name__ == "PipelineException"
        return RequestError(text) if own and "CUDA" not in text else EngineError(text)

    def check(self, given: PipelineInput) -> None:
        """Raises RequestError for an input that the model can't hold. On a GPU a position beyond
        the model's last would end the process's use of it.
        """
        item, parameters = given.item, given.parameters
        # All texts count, since any may be tokenised on the one thread.
        texts = [item.messages if isinstance(item, ChatMessages) else item, dict(parameters)]
        most_tokens = self._max_length
        if most_tokens is None or _cuts(parameters):
            most_tokens = max(most_tokens or 0, _MOST_TOKENS)
        check_characters("inputs", num_characters(texts), most_tokens)
        if self._max_length is not None:
            self._check_text(item, parameters, self._max_length)
        if isinstance(item, np.ndarray):
            self._check_samples(item)

    def results(self, inputs: Sequence[PipelineInput]) -> list[Any]:
        """A result for each input, computed together; their parameters are equal."""
        given, parameters = [self._as_input(one.item) for one in inputs], inputs[0].parameters
        if self._name in _ONE_BY_ONE:
            return [self.pipe(item, **self._arguments(parameters)) for item in given]
        found = self.pipe(given, batch_size=len(given), **self._arguments(parameters))
        if self._name in _UNWRAPS_ONE and len(given) == 1:
            return [found]
        found = list(found)
        if len(found) != len(given):
            raise EngineError(f"{self._name} gave {len(found)} results for {len(given)} inputs")
        return found

    def _as_input(self, item: Any) -> Any:
        if isinstance(item, ChatMessages):
            if self._chat is None:
                raise RequestError(f"inputs: the {self._name} pipeline takes no chat")
            return self._chat([dict(message) for message in item.messages])
        if isinstance(item, dict):
            return dict(item)  # some pipelines modify their inputs
        return item

    def _arguments(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """A deep copy, because some pipelines modify their arguments."""
        found = {k: dict(v) if isinstance(v, dict) else v for k, v in parameters.items()}
        for nested in found.values():
            if isinstance(nested, dict) and isinstance(nested.get("speaker_embeddings"), list):
                import torch

                nested["speaker_embeddings"] = torch.tensor(nested["speaker_embeddings"])
        return found

    def _check_text(self, item: Any, parameters: Mapping[str, Any], limit: int) -> None:
        """Checks the tokens of a text or {"text", "text_pair"}."""
        words: list[str]
        if isinstance(item, str):
            words = [item]
        elif isinstance(item, dict) and set(item) <= {"text", "text_pair"}:
            words = [item[name] for name in ("text", "text_pair") if name in item]
        else:
            return
        asked = _asked_length(parameters)
        if asked is not None and asked > limit:
            raise RequestError(f"max_length: got {asked}, this model takes at most {limit} tokens")
        if _cuts(parameters) or sum(len(w.encode()) for w in words) + 8 <= limit:
            return
        num_tokens = len(self.pipe.tokenizer(*words)["input_ids"])
        if num_tokens > limit:
            nested = _CUTTING_PARAMETER.get(self._name)
            how = f'pipeline_parameters {{"{nested}": {{"truncation": true}}}}'
            raise RequestError(
                f"inputs: got {num_tokens} tokens, this model takes at most {limit}; send "
                f"{how if nested else 'the parameter truncation: true'} to cut it"
            )

    def _check_samples(self, samples: Any) -> None:
        """Raises RequestError for a sound too short for one frame of the model's features."""
        count = getattr(self.pipe.model, "_get_feat_extract_output_lengths", None)
        if count is None:
            return
        import torch

        if int(count(torch.tensor([len(samples)])).min()) < 1:
            raise RequestError(f"audio: {len(samples)} samples are too few for this model")


def _max_length(name: str, pipe: Any) -> int | None:
    """The number of positions; None where the pipeline truncates or no limit is known."""
    if name not in ("text-classification", "feature-extraction", "fill-mask", "text-generation"):
        return None
    limit = getattr(pipe.tokenizer, "model_max_length", NO_LIMIT)
    limit = int(min(limit, num_positions(pipe.model) or NO_LIMIT))
    return limit if limit < NO_LIMIT else None


def _cuts(parameters: Mapping[str, Any]) -> bool:
    values = [parameters.get(name) for name in _MAY_CUT]
    return any(bool(v.get("truncation")) if isinstance(v, dict) else bool(v) for v in values)


def _asked_length(parameters: Mapping[str, Any]) -> int | None:
    nested = [v for v in (parameters.get(n) for n in _MAY_CUT) if isinstance(v, dict)]
    lengths = [found.get("max_length") for found in (parameters, *nested)]
    return max((n for n in lengths if isinstance(n, int)), default=None)

"""Calls one loaded transformers pipeline, and distinguishes a caller's mistake from a failure of
the engine. Runs on the engine's thread alone: neither a pipeline nor its tokenizer is thread-safe.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hf_triton.runtime.errors import EngineError, RequestError, RuntimeModelError, reason
from hf_triton.runtime.tokenizing.lengths import check_characters, num_characters

from .items import ChatMessages

# Raised by transformers' own checks of inputs and parameters.
_CALLERS_FAULTS = (ValueError, TypeError, LookupError, AttributeError, AssertionError)
# Given a list of one input, these pipelines return its result without the list.
_UNWRAPS_ONE = ("fill-mask", "keypoint-matching", "table-question-answering")
# These pipelines take a list of {"images", "text"} for a chat, so they are called once per input.
_ONE_BY_ONE = ("image-text-to-text", "any-to-any")
_NO_LIMIT = 1_000_000  # tokenizers without one say 1e30
_MOST_TOKENS = 2**14  # characters of a text that is cut, or read in windows
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


class PipelineCall:
    """The pipeline as a function from inputs to results."""

    def __init__(self, name: str, pipe: Any) -> None:
        self.name = name
        self._pipe = pipe
        self._chat = getattr(importlib.import_module(type(pipe).__module__), "Chat", None)
        self._max_length = _max_length(name, pipe)

    @property
    def is_on_cpu(self) -> bool:
        """Whether it computes on a CPU."""
        return bool(self._pipe.device.type == "cpu")

    def check(self, given: PipelineInput) -> None:
        """Raises RequestError for an input that the model can't hold.

        Asked before the call: on a GPU a position beyond the model's last would end the process's
        use of it.
        """
        item, parameters = given.item, given.parameters
        self._check_characters(item, parameters)
        if self._max_length is not None:
            for words in _texts(item):
                self._check_text(words, parameters)
        if isinstance(item, np.ndarray):
            self._check_samples(item)

    def results(self, inputs: Sequence[PipelineInput]) -> list[Any]:
        """A result for each input, computed together; their parameters are equal."""
        given, parameters = [self._as_input(one.item) for one in inputs], inputs[0].parameters
        if self.name in _ONE_BY_ONE:
            return [self._pipe(item, **self._arguments(parameters)) for item in given]
        found = self._pipe(given, batch_size=len(given), **self._arguments(parameters))
        if self.name in _UNWRAPS_ONE and len(given) == 1:
            return [found]
        found = list(found)
        if len(found) != len(given):
            raise EngineError(f"{self.name} gave {len(found)} results for {len(given)} inputs")
        return found

    def failure(self, error: BaseException) -> RuntimeModelError:
        """The error for the caller of a failed call."""
        if isinstance(error, RuntimeModelError):
            return error
        text = f"the {self.name} pipeline: {type(error).__name__}: {reason(error)}"
        # A CUDA failure may come as any of torch's errors.
        own = isinstance(error, _CALLERS_FAULTS) or type(error).__name__ == "PipelineException"
        return RequestError(text) if own and "CUDA" not in text else EngineError(text)

    def _as_input(self, item: Any) -> Any:
        if isinstance(item, ChatMessages):
            if self._chat is None:
                raise RequestError(f"inputs: the {self.name} pipeline takes no chat")
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

    def _check_characters(self, item: Any, parameters: Mapping[str, Any]) -> None:
        """Counts all texts, since any may be tokenised on the one thread."""
        given = item.messages if isinstance(item, ChatMessages) else item
        cuts = self._max_length is None or _cuts(parameters)
        most_tokens = max(self._max_length or 0, _MOST_TOKENS) if cuts else self._max_length
        check_characters("inputs", num_characters([given, dict(parameters)]), most_tokens or 0)

    def _check_text(self, words: Sequence[str], parameters: Mapping[str, Any]) -> None:
        limit = self._max_length or _NO_LIMIT
        asked = _asked_length(parameters)
        if asked is not None and asked > limit:
            raise RequestError(f"max_length: got {asked}, this model takes at most {limit} tokens")
        if _cuts(parameters) or sum(len(w.encode()) for w in words) + 8 <= limit:
            return
        num_tokens = len(self._pipe.tokenizer(*words)["input_ids"])
        if num_tokens > limit:
            raise RequestError(
                f"inputs: got {num_tokens} tokens, this model takes at most {limit}; "
                f"{_how_to_cut(self.name)}"
            )

    def _check_samples(self, samples: Any) -> None:
        """Raises RequestError for a sound too short for one frame of the model's features."""
        count = getattr(self._pipe.model, "_get_feat_extract_output_lengths", None)
        if count is None:
            return
        import torch

        if int(count(torch.tensor([len(samples)])).min()) < 1:
            raise RequestError(f"audio: {len(samples)} samples are too few for this model")


def _texts(item: Any) -> list[list[str]]:
    """The texts tokenised together: [[text]] or [[text, pair]]; [] for other inputs."""
    if isinstance(item, str):
        return [[item]]
    if isinstance(item, dict) and set(item) <= {"text", "text_pair"}:
        return [[item[name] for name in ("text", "text_pair") if name in item]]
    return []


def _max_length(name: str, pipe: Any) -> int | None:
    """The number of positions; None where the pipeline truncates or no limit is known."""
    if name not in ("text-classification", "feature-extraction", "fill-mask", "text-generation"):
        return None
    config = pipe.model.config.get_text_config()
    found = [getattr(pipe.tokenizer, "model_max_length", _NO_LIMIT)]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        found.append(positions - _num_unused_positions(pipe.model))
    limit = int(min(found))
    return limit if limit < _NO_LIMIT else None


def _num_unused_positions(model: Any) -> int:
    """How many positions at the start are never used: RoBERTa's models count positions from the
    padding token's id + 1.
    """
    padded = any(
        getattr(module, "padding_idx", None) is not None
        for name, module in model.named_modules()
        if name.endswith(("position_embeddings", "embed_positions"))
    )
    pad = getattr(model.config, "pad_token_id", None)
    return pad + 1 if padded and isinstance(pad, int) else 0


def _cuts(parameters: Mapping[str, Any]) -> bool:
    values = [parameters.get(name) for name in _MAY_CUT]
    return any(bool(v.get("truncation")) if isinstance(v, dict) else bool(v) for v in values)


def _asked_length(parameters: Mapping[str, Any]) -> int | None:
    nested = [v for v in (parameters.get(n) for n in _MAY_CUT) if isinstance(v, dict)]
    lengths = [found.get("max_length") for found in (parameters, *nested)]
    return max((n for n in lengths if isinstance(n, int)), default=None)


def _how_to_cut(name: str) -> str:
    nested = {"fill-mask": "tokenizer_kwargs", "text-generation": "tokenizer_encode_kwargs"}
    if name not in nested:
        return "send the parameter truncation: true to cut it"
    return f'send pipeline_parameters {{"{nested[name]}": {{"truncation": true}}}} to cut it'

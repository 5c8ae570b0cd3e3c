"""A Triton request to the generations it asks for, one per row, checked field by field.

Knows the contract's names and defaults; knows no engine. The same names work as tensors and as
request parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hf_runtime.errors import UnsupportedError
from hf_runtime.tensors import RequestFields, boolean, integer, number

from .sampling_params import SamplingParams

_INTEGERS = {"min_tokens": 0, "top_k": 0, "seed": None}
_NUMBERS = {"top_p": 0.0}
_FLAGS = {
    "exclude_input_in_output": True,
    "return_finish_reason": False,
    "return_num_input_tokens": False,
    "return_num_output_tokens": False,
    "stream": False,
}
_PARAMETERS = {
    *("max_tokens", "temperature", "repetition_penalty", "stop_words"),
    *_INTEGERS,
    *_NUMBERS,
    *_FLAGS,
}


@dataclass(frozen=True)
class Generation:
    """One row of a request: what to continue and how."""

    text: str
    prompt_token_ids: list[int]
    params: SamplingParams
    exclude_input: bool


@dataclass(frozen=True)
class GenerationRequest:
    """What a request asks for: its rows, and the optional outputs that it wants."""

    rows: list[Generation]
    outputs: frozenset[str]


@dataclass(frozen=True)
class PromptReader:
    """What parsing needs of the model and its engine."""

    tokenize: Callable[[str], list[int]]  # raises RequestError for a prompt that can't fit
    default_max_tokens: Callable[[int], int]
    check_length: Callable[[int, int], None]
    default_repetition_penalty: float = 1.0


def parse_request(fields: RequestFields, reader: PromptReader) -> GenerationRequest:
    """Reads one request.

    Raises:
        RequestError: names the field, what was got and what is allowed.
    """
    fields.check_parameters(_PARAMETERS)
    texts = fields.texts("text_input")
    columns: dict[str, list[Any]] = {
        **{name: fields.values(name, integer, default) for name, default in _INTEGERS.items()},
        **{name: fields.values(name, number, default) for name, default in _NUMBERS.items()},
        **{name: fields.values(name, boolean, default) for name, default in _FLAGS.items()},
        "max_tokens": fields.values("max_tokens", integer, None),
        "temperature": fields.values("temperature", number, None),
        "repetition_penalty": fields.values("repetition_penalty", number, None),
        "stop_words": fields.text_lists("stop_words"),
    }
    if any(columns["stream"]):
        raise UnsupportedError("stream: got true, this model answers once; allowed: false")
    rows = [
        _generation(text, {name: column[row] for name, column in columns.items()}, reader)
        for row, text in enumerate(texts)
    ]
    outputs = {name for name in _FLAGS if name.startswith("return_") and any(columns[name])}
    return GenerationRequest(rows, frozenset(name.removeprefix("return_") for name in outputs))


def _generation(text: str, values: dict[str, Any], reader: PromptReader) -> Generation:
    """Checks the cheap things first: a bad number is found before a long prompt is tokenised."""
    penalty = values["repetition_penalty"]
    params = SamplingParams(
        max_tokens=values["max_tokens"] if values["max_tokens"] is not None else _UNKNOWN,
        min_tokens=values["min_tokens"],
        temperature=_temperature(values),
        top_k=values["top_k"],
        top_p=values["top_p"],
        repetition_penalty=reader.default_repetition_penalty if penalty is None else penalty,
        seed=values["seed"],
        stop_words=values["stop_words"],
    )
    prompt_token_ids = reader.tokenize(text)
    if values["max_tokens"] is None:
        default = reader.default_max_tokens(len(prompt_token_ids))
        params = params.with_max_tokens(max(default, params.min_tokens))
    reader.check_length(len(prompt_token_ids), params.max_tokens)
    return Generation(text, prompt_token_ids, params, values["exclude_input_in_output"])


# Stands for max_tokens until the prompt's length is known; larger than any min_tokens.
_UNKNOWN = 2**63


def _temperature(values: dict[str, Any]) -> float:
    """The request's temperature; 1 where it asks for sampling in another way, 0 (greedy) where it
    asks for nothing.
    """
    if values["temperature"] is not None:
        return float(values["temperature"])
    samples = values["top_k"] > 1 or 0 < values["top_p"] < 1 or values["seed"] is not None
    return 1.0 if samples else 0.0

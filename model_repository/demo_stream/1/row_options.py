"""The options of each row of a request: where they may stand, of which type, with which default.

A name means the same as a tensor and as a request parameter, whose number may come as a text;
``sampling_parameters`` wins over both. Ranges of sampling are SamplingParams' own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_runtime.errors import RequestError
from hf_runtime.tensors import RequestFields, shown, text

from .sampling_json import (
    FIELD,
    lenient_boolean,
    lenient_integer,
    lenient_number,
    names_in,
    read_sampling_parameters,
)

MAX_CHOICES = 128

_Convert = Callable[[str, Any], Any]
_OPTIONS: dict[str, tuple[_Convert, Any]] = {
    "max_tokens": (lenient_integer, None),
    "min_tokens": (lenient_integer, 0),
    "temperature": (lenient_number, None),
    "top_k": (lenient_integer, 0),
    "top_p": (lenient_number, 0.0),
    "min_p": (lenient_number, 0.0),
    "repetition_penalty": (lenient_number, None),
    "frequency_penalty": (lenient_number, 0.0),
    "presence_penalty": (lenient_number, 0.0),
    "seed": (lenient_integer, None),
    "random_seed": (lenient_integer, None),
    "ignore_eos": (lenient_boolean, False),
    "include_stop_str_in_output": (lenient_boolean, False),
    "logprobs": (lenient_integer, None),
    "n": (lenient_integer, 1),
    "beam_width": (lenient_integer, 1),
    "length_penalty": (lenient_number, 1.0),
    "timeout_ms": (lenient_integer, None),
    "on_timeout": (text, "partial"),
    "stream": (lenient_boolean, False),
    "exclude_input_in_output": (lenient_boolean, True),
    "return_finish_reason": (lenient_boolean, False),
    "return_cumulative_logprob": (lenient_boolean, False),
    "return_logprobs": (lenient_boolean, False),
    "return_num_input_tokens": (lenient_boolean, False),
    "return_num_output_tokens": (lenient_boolean, False),
}
_WORDS = ("stop_words", "bad_words")
_TEXTS = ("text_input", "messages", "tools", "chat_template_kwargs", "sampling_parameters")
_JSON_ONLY: dict[str, Any] = {"best_of": None, "stop_token_ids": (), "logit_bias": ()}


def read_rows(fields: RequestFields) -> list[dict[str, Any]]:
    """The values of each row by name, defaults filled in, prompts and choices checked.

    Raises:
        RequestError: names the field, what was got and what is allowed.
    """
    for given in fields.optional_texts(FIELD):
        # vLLM's own client sends each of them twice; here it wins, whatever the other looks like.
        fields.drop_parameters(names_in(given or "{}"))
    fields.check_parameters((*_OPTIONS, *_WORDS, *_TEXTS))
    num_rows = fields.count_rows("text_input", "messages")
    columns: dict[str, list[Any]] = {
        **{name: fields.optional_texts(name) for name in _TEXTS},
        **{name: fields.values(name, *option) for name, option in _OPTIONS.items()},
        **{name: fields.text_lists(name) for name in _WORDS},
    }
    rows = []
    for index in range(num_rows):
        row = {**_JSON_ONLY, **{name: column[index] for name, column in columns.items()}}
        _check_prompt(row, f" in row {index} of the batch" if num_rows > 1 else "")
        row["seed"] = _one_seed(row["seed"], row["random_seed"])
        row.update(read_sampling_parameters(row["sampling_parameters"] or "{}"))
        _check_choices(row)
        rows.append(row)
    return rows


def _check_prompt(row: dict[str, Any], where: str) -> None:
    if row["text_input"] and row["messages"]:
        raise RequestError(f"text_input and messages: both given{where}, send one of them")
    if not row["text_input"] and not row["messages"]:
        found = "missing" if row["text_input"] is None else "empty"
        raise RequestError(f"text_input: {found}{where}, a text is required (or messages)")
    for name in ("tools", "chat_template_kwargs"):
        if row[name] and not row["messages"]:
            raise RequestError(f"{name}: given{where} without messages, which it is part of")


def _one_seed(seed: int | None, random_seed: int | None) -> int | None:
    if seed is not None and random_seed is not None and seed != random_seed:
        raise RequestError(
            f"random_seed: got {random_seed}, allowed: the same as seed ({seed}), or one of them"
        )
    return random_seed if seed is None else seed


def _check_choices(row: dict[str, Any]) -> None:
    num = row["n"]
    _require(1 <= num <= MAX_CHOICES, "n", num, f"1 to {MAX_CHOICES}")
    _require(row["best_of"] in (None, 1, num), "best_of", row["best_of"], f"1 or n ({num})")
    _require(row["beam_width"] == 1, "beam_width", row["beam_width"], "1 (no beam search)")
    allowed = "1 (it only weighs beams)"
    _require(row["length_penalty"] == 1, "length_penalty", row["length_penalty"], allowed)
    if row["on_timeout"] not in ("partial", "error"):
        raise RequestError("on_timeout: got another text, allowed: partial or error")


def _require(condition: bool, field: str, got: object, allowed: str) -> None:
    if not condition:
        raise RequestError(f"{field}: got {shown(got)}, allowed: {allowed}")

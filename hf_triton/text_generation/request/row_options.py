"""The options of each row of a request: where they may stand, of which type, with which default.

A name means the same as a tensor and as a request parameter, whose number may come as a text;
``sampling_parameters`` wins over both. Ranges of sampling are SamplingParams' own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.deadline import check_on_timeout
from hf_triton.runtime.request.tensors import RequestFields, shown, text

from ..structured.constraint import constraint_of
from .limits import MAX_INPUT_IDS, check_lists
from .sampling_json import (
    FIELD,
    lenient_boolean,
    lenient_integer,
    lenient_number,
    names_in,
    read_sampling_parameters,
)

MAX_CHOICES = 128

Convert = Callable[[str, Any], Any]
_OPTIONS: dict[str, tuple[Convert, Any]] = {
    "max_tokens": (lenient_integer, None),
    "min_tokens": (lenient_integer, None),
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
    "prompt_logprobs": (lenient_integer, None),
    "n": (lenient_integer, 1),
    "beam_width": (lenient_integer, None),
    "length_penalty": (lenient_number, None),
    "timeout_ms": (lenient_integer, None),
    "on_timeout": (text, "partial"),
    "json_schema": (text, None),
    "regex": (text, None),
    "stream": (lenient_boolean, False),
    "exclude_input_in_output": (lenient_boolean, True),
    "skip_special_tokens": (lenient_boolean, True),
    "add_special_tokens": (lenient_boolean, None),
    "truncate_prompt_tokens": (lenient_integer, None),
    "return_finish_reason": (lenient_boolean, False),
    "return_cumulative_logprob": (lenient_boolean, False),
    "return_logprobs": (lenient_boolean, False),
    "return_num_input_tokens": (lenient_boolean, False),
    "return_num_output_tokens": (lenient_boolean, False),
    "return_prompt_logprobs": (lenient_boolean, False),
    "return_prompt_token_ids": (lenient_boolean, False),
    "return_token_ids": (lenient_boolean, False),
    "return_num_cached_tokens": (lenient_boolean, False),
    "return_chat_format": (lenient_boolean, False),
}
_WORDS = ("stop_words", "bad_words")
_CHOICE = "choice"  # a list like those, but an empty text in it is refused
_JSON_ONLY: dict[str, Any] = {
    "best_of": None,
    "stop_token_ids": (),
    "logit_bias": (),
    "allowed_token_ids": (),
    "clamp_max_tokens": False,
    "grammar": None,
    "priority": 0,  # a parameter of that name is Triton's own
}


@dataclass(frozen=True)
class RowFields:
    """The fields of a task's requests: ``prompts``, of which each row has one, or its token ids
    where it ``takes_ids``; the ``texts`` that may stand beside it; ``files``, of which a row has
    any number; and ``options``, a conversion and a default each, beside those of all.
    """

    prompts: tuple[str, ...]
    texts: tuple[str, ...] = ()
    options: Mapping[str, tuple[Convert, Any]] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    takes_ids: bool = False


_IDS = "input_ids"
CHAT_FIELDS = RowFields(
    ("text_input", "messages"), ("tools", "chat_template_kwargs", "lora_name"), takes_ids=True
)


_NEVER_TOGETHER = (FIELD, "json_schema", "regex", _CHOICE)
_NO_DATA = (
    "text_input: got every other input too, as perf_analyzer sends them by --string-data; have it "
    'send a prompt: --input-data FILE, with {"data": [{"text_input": ["Once upon a time"]}]}'
)


def read_rows(fields: RequestFields, known: RowFields = CHAT_FIELDS) -> list[dict[str, Any]]:
    """The values of each row by name, defaults filled in, prompts and choices checked.

    Raises:
        RequestError: names the field, what was got and what is allowed.
    """
    if all(fields.has_tensor(name) for name in _NEVER_TOGETHER):
        raise RequestError(_NO_DATA)
    for given in fields.optional_texts(FIELD):
        # vLLM's own client sends each of them twice; here it wins, whatever the other looks like.
        fields.drop_parameters(names_in(given or "{}"))
    options = {**_OPTIONS, **known.options}
    texts = (*known.prompts, *known.texts, FIELD)
    ids = (_IDS,) if known.takes_ids else ()
    fields.check_parameters((*options, *_WORDS, _CHOICE, *texts, *ids, *known.files))
    num_rows = fields.count_rows(*known.prompts, *ids, *known.files)
    columns: dict[str, list[Any]] = {
        **{name: fields.optional_texts(name) for name in texts},
        **{name: fields.values(name, *option) for name, option in options.items()},
        **{name: fields.text_lists(name) for name in _WORDS},
        _CHOICE: fields.lists(_CHOICE, text),
        _IDS: fields.lists(_IDS, lenient_integer, MAX_INPUT_IDS) if ids else [[]] * num_rows,
        **{name: [tuple(row) for row in fields.raw_lists(name)] for name in known.files},
    }
    cache_salt = fields.cache_salt
    rows = []
    for index in range(num_rows):
        row = {**_JSON_ONLY, **{name: column[index] for name, column in columns.items()}}
        _check_prompt(row, known, f" in row {index} of the batch" if num_rows > 1 else "")
        row["cache_salt"] = cache_salt
        row["seed"] = _one_seed(row["seed"], row["random_seed"])
        row.update(read_sampling_parameters(row["sampling_parameters"] or "{}"))
        _check_choices(row)
        check_lists(row)
        row["constraint"] = constraint_of(row, may_be_empty=num_rows > 1)
        rows.append(row)
    return rows


def _check_prompt(row: dict[str, Any], known: RowFields, where: str) -> None:
    first, *others = known.prompts
    given = [name for name in (*known.prompts, _IDS) if row[name]]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)}: both given{where}, send one of them")
    if not given and not any(row[name] for name in known.files):
        found = "missing" if row[first] is None else "empty"
        instead = f" (or {', '.join(others)})" if others else ""
        raise RequestError(f"{first}: {found}{where}, a text is required{instead}")
    for name in ("tools", "chat_template_kwargs"):
        if row.get(name) and not row["messages"]:
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
    check_on_timeout(row["on_timeout"])


def _require(condition: bool, field: str, got: object, allowed: str) -> None:
    if not condition:
        raise RequestError(f"{field}: got {shown(got)}, allowed: {allowed}")

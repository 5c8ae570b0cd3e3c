"""The ``sampling_parameters`` tensor: a JSON object with vLLM's names, as clients of Triton's vLLM
backend send it. Numbers and booleans may be texts, as genai-perf sends them; null is the default.
vLLM's names of what is not done here are taken with the value that changes nothing.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import read_object, short
from hf_triton.runtime.request.tensors import boolean, integer, kind_of, number, text

from ..sequence.request_options import FIXED, OPTIONS
from ..structured.constraint import ANY_OBJECT, KINDS, choice_texts, schema_text

FIELD = "sampling_parameters"
MAX_CHARACTERS = 2**20  # a schema of 256 KiB fits, though its quotes are escaped


def names_in(text: str) -> frozenset[str]:
    """The names that a JSON text sets. Raises RequestError for broken JSON, or too much of it."""
    if len(text) > MAX_CHARACTERS:
        raise RequestError(
            f"{FIELD}: got {len(text)} characters, allowed: at most {MAX_CHARACTERS}"
        )
    return frozenset(read_object(FIELD, text))


def read_sampling_parameters(text: str) -> dict[str, Any]:
    """The options of a JSON text, under this contract's names. Raises RequestError."""
    options: dict[str, Any] = {}
    set_by: dict[str, str] = {}  # constraint option -> the name that set it
    for name, value in read_object(FIELD, text).items():
        if name in _STRUCTURED and value is not None:
            found = _structured(f"{FIELD}: {name}", value)
            for option in found:
                _check_given_once(set_by, option, name)
            options.update(found)
        elif name in _NEUTRAL:
            _check_neutral(name, value)
        elif name not in JSON_OPTIONS:
            raise RequestError(_unknown(name))
        elif value is not None:
            option, convert = JSON_OPTIONS[name]
            if option in KINDS:
                _check_given_once(set_by, option, name)
            options[option] = convert(f"{FIELD}: {name}", value)
    return options


def lenient_integer(name: str, value: Any) -> int:
    """An integer, also as a text or with a fraction of 0."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,30}\s*", value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return integer(name, value)


def lenient_number(name: str, value: Any) -> float:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return number(name, value)


def lenient_boolean(name: str, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return boolean(name, value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """A text or a list of texts; empty ones are left out."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RequestError(f"{name}: got {kind_of(value)}, allowed: a text or a list of texts")
    return tuple(filter(None, texts))


def _integers(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise RequestError(f"{name}: got {kind_of(value)}, allowed: a list of integers")
    return tuple(lenient_integer(name, element) for element in value)


def _some_integers(name: str, value: Any) -> tuple[int, ...]:
    found = _integers(name, value)
    if not found:
        raise RequestError(f"{name}: got an empty list, allowed: one token or more, or null")
    return found


def _biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """{"token_id": bias}, ordered by id."""
    if not isinstance(value, dict):
        raise RequestError(f"{name}: got {kind_of(value)}, allowed: an object of token ids")
    biases = {
        lenient_integer(name, token): lenient_number(name, bias) for token, bias in value.items()
    }
    return tuple(sorted(biases.items()))


def _num_logprobs(name: str, value: Any) -> int | None:
    """False is none at all, as in OpenAI's requests."""
    return None if value is False else lenient_integer(name, value)


def _seed(name: str, value: Any) -> int | None:
    """-1 means no seed, as in vLLM; other negative seeds mean what they mean to torch."""
    seed = lenient_integer(name, value)
    if -(2**63) <= seed < -1:
        return seed + 2**64
    return None if seed == -1 else seed


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        got = "an empty text" if value == "" else kind_of(value)
        raise RequestError(f"{name}: got {got}, allowed: a text")
    return value


def _any_object(name: str, value: Any) -> str:
    if not lenient_boolean(name, value):
        raise RequestError(f"{name}: got false, allowed: true or null")
    return ANY_OBJECT


def _structured(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{name}: got {kind_of(value)}, allowed: an object")
    options: dict[str, Any] = {}
    set_by: dict[str, str] = {}
    for key, given in value.items():
        if given is None:
            continue
        if key not in _CONSTRAINTS:
            allowed = ", ".join(_CONSTRAINTS)
            raise RequestError(f"{name}: {short(key)}: unknown name; allowed: {allowed}")
        option, convert = _CONSTRAINTS[key]
        _check_given_once(set_by, option, key, name)
        options[option] = convert(f"{name}.{key}", given)
    return options


def _check_given_once(set_by: dict[str, str], option: str, name: str, where: str = FIELD) -> None:
    other = set_by.setdefault(option, name)
    if other != name:
        raise RequestError(f"{where}: {other} and {name}: both given, send one of them")


_Convert = Callable[[str, Any], Any]
# By the names within _STRUCTURED, and with guided_ before them as names of their own.
_CONSTRAINTS: dict[str, tuple[str, _Convert]] = {
    "json": ("json_schema", schema_text),
    "regex": ("regex", _text),
    "choice": ("choice", choice_texts),
    "json_object": ("json_schema", _any_object),
    "grammar": ("grammar", _text),
}
_STRUCTURED = ("structured_outputs", "guided_decoding")
CONVERSIONS: dict[str, _Convert] = {
    "integer": lenient_integer,
    "number": lenient_number,
    "boolean": lenient_boolean,
    "text": text,
    "texts": _texts,
    "integers": _integers,
    "biases": _biases,
}
# Options that take more or less than others of their kind.
_OWN: dict[str, _Convert] = {
    "seed": _seed,
    "logprobs": _num_logprobs,
    "prompt_logprobs": _num_logprobs,
    "allowed_token_ids": _some_integers,
    **dict(_CONSTRAINTS.values()),
    "json_schema": schema_text,
}
JSON_OPTIONS: dict[str, tuple[str, _Convert]] = {
    **{
        option.called or name: (name, _OWN.get(name) or CONVERSIONS[option.kind])
        for name, option in OPTIONS.items()
        if option.in_json
    },
    "lora_name": ("lora_name", text),
    **{f"guided_{name}": constraint for name, constraint in _CONSTRAINTS.items()},
}

# vLLM's other names, of several releases, with the value that changes nothing; null never does.
_NEUTRAL: dict[str, Any] = {
    **FIXED,
    "top_logprobs": 0,
    **dict.fromkeys(
        (
            *("logits_processors", "extra_args", "guided_decoding", "structured_outputs"),
            *("output_kind", "response_format"),
        )
    ),
}
_OFTEN_MEANT = {"stop_words": "stop", "random_seed": "seed", "max_new_tokens": "max_tokens"}


def _check_neutral(name: str, value: Any) -> None:
    neutral = _NEUTRAL[name]
    if value is None:
        return
    given = lenient_boolean(f"{FIELD}: {name}", value) if isinstance(neutral, bool) else value
    if given is neutral or (given == neutral and not isinstance(given, bool)):
        return
    allowed = "null" if neutral is None else str(neutral).lower()
    raise RequestError(f"{FIELD}: {name}: got {kind_of(value)}, allowed: {allowed} (nothing else)")


def _unknown(name: str) -> str:
    names = sorted((*JSON_OPTIONS, *_NEUTRAL))
    near = difflib.get_close_matches(short(name), names, 1)
    near = [_OFTEN_MEANT[name]] if name in _OFTEN_MEANT else near
    hint = f", did you mean {near[0]}?" if near else ";"
    newest = sorted(known for known in JSON_OPTIONS if not known.startswith("guided_"))
    return f"{FIELD}: {short(name)}: unknown name{hint} allowed: {', '.join(newest)}"

"""How much a row's lists may hold: the engine looks at each of them with every token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf_runtime.errors import RequestError

MAX_STOP_WORDS = 128
MAX_BAD_WORDS = 1000
MAX_WORD_BYTES = 256
MAX_ALL_WORDS_BYTES = 64 * 1024
MAX_STOP_TOKEN_IDS = 1000
MAX_LOGIT_BIASES = 10_000


def check_lists(row: Mapping[str, Any]) -> None:
    """Raises RequestError where a list of a row is too long; names the field, and what was got."""
    for name, most in (("stop_words", MAX_STOP_WORDS), ("bad_words", MAX_BAD_WORDS)):
        _check_number(name, row[name], most, "texts")
        _check_sizes(name, row[name])
    _check_number("stop_token_ids", row["stop_token_ids"], MAX_STOP_TOKEN_IDS, "tokens")
    _check_number("allowed_token_ids", row["allowed_token_ids"], MAX_LOGIT_BIASES, "tokens")
    _check_number("logit_bias", row["logit_bias"], MAX_LOGIT_BIASES, "tokens")


def _check_number(name: str, values: tuple[Any, ...], most: int, what: str) -> None:
    if len(values) > most:
        raise RequestError(f"{name}: got {len(values)} {what}, allowed: at most {most}")


def _check_sizes(name: str, words: Iterable[str]) -> None:
    # A half of a surrogate pair is found when the word is used.
    sizes = [len(word.encode("utf-8", "surrogatepass")) for word in words]
    if max(sizes, default=0) > MAX_WORD_BYTES:
        raise RequestError(
            f"{name}: got a text of {max(sizes)} bytes, allowed: at most {MAX_WORD_BYTES} each"
        )
    if sum(sizes) > MAX_ALL_WORDS_BYTES:
        raise RequestError(
            f"{name}: got texts of {sum(sizes)} bytes, allowed: at most {MAX_ALL_WORDS_BYTES} "
            "together"
        )

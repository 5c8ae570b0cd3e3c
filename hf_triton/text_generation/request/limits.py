"""How much a row's lists may hold: the engine looks at each of them with every token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf_triton.runtime.errors import RequestError

from ..sequence.request_options import OPTIONS
from ..sequence.sampling_params import SamplingParams
from ..sequence.sequence import Sequence

MAX_WORD_BYTES = 256
MAX_ALL_WORDS_BYTES = 64 * 1024
MAX_LOGPROBS_TOGETHER = 2**22  # of a request: half a gigabyte while they are collected
MAX_INPUT_IDS = 2**20  # no model's context is longer by far


def check_lists(row: Mapping[str, Any]) -> None:
    """Raises RequestError where a list of a row is too long; names the field, and what was got."""
    for name, option in OPTIONS.items():
        if option.most is None:
            continue
        number, what = len(row[name]), "texts" if option.kind == "texts" else "tokens"
        if number > option.most:
            raise RequestError(f"{name}: got {number} {what}, allowed: at most {option.most}")
        if option.kind == "texts":
            _check_sizes(name, row[name])


def check_logprobs(sequences: Iterable[Sequence]) -> None:
    """Raises RequestError where all sequences of a request may have too many log-probabilities
    together.
    """
    num = sum(
        one.params.max_tokens * _with_its_own(one.params.num_logprobs)
        + one.num_prompt_tokens * _with_its_own(one.params.num_prompt_logprobs)
        for one in sequences
    )
    if num > MAX_LOGPROBS_TOGETHER:
        raise RequestError(
            f"logprobs: got {num}, of n x max_tokens and the prompt, with their alternatives; "
            f"allowed: at most {MAX_LOGPROBS_TOGETHER} in one request"
        )


def most_with_logprobs(params: SamplingParams, num_prompt_tokens: int, n: int) -> int:
    """How many tokens each of ``n`` outputs may have so that ``check_logprobs`` passes."""
    each = _with_its_own(params.num_logprobs)
    of_prompt = num_prompt_tokens * _with_its_own(params.num_prompt_logprobs)
    return max(1, (MAX_LOGPROBS_TOGETHER - of_prompt) // (n * each)) if each else params.max_tokens


def _with_its_own(num_alternatives: int | None) -> int:
    return 0 if num_alternatives is None else 1 + num_alternatives


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

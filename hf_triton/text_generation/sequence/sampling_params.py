"""Options of one request for sampling and stopping, checked by their ranges. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.tensors import shown

from ..structured.constraint import Constraint
from .request_options import FILTERS, OPTIONS

_BOUNDED = {name: option.param or name for name, option in OPTIONS.items() if option.bounds}


class LogitsRule(Protocol):
    """A restriction by the task beside the request's options, such as timestamps in order."""

    def restrict(self, logits: Any, token_ids: Tokens[int]) -> None:
        """Changes float32 logits (vocab,) in place; ``token_ids`` is the output so far."""


@dataclass(frozen=True)
class SamplingParams:
    """Checked when made. ``temperature`` 0 takes the likeliest token; ``top_k`` 0, ``top_p`` 0 or 1
    and ``min_p`` 0 are off.

    ``frequency_penalty`` and ``presence_penalty`` look at the output, ``repetition_penalty`` at the
    prompt too. ``bad_token_ids`` are token sequences that are never completed; where there are
    ``allowed_token_ids``, no others come. ``num_logprobs`` is None for no log-probabilities, 0 for
    those of the sampled token, k for those of the k likeliest too; so is ``num_prompt_logprobs`` of
    the prompt's tokens, and only with it may ``max_tokens`` be 0. Scores of beams are divided by
    the length to the power of ``length_penalty``; None is the model's own. The output follows
    ``constraint`` and the task's own ``rule``.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_words: tuple[str, ...] = ()
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    include_stop_word: bool = False
    ignore_eos: bool = False
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    num_beams: int = 1
    length_penalty: float | None = None
    constraint: Constraint | None = None
    rule: LogitsRule | None = None

    def __post_init__(self) -> None:
        if self.max_tokens != 0 or self.num_prompt_logprobs is None:
            _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 to max_tokens")
        fits, most = self.min_tokens <= self.max_tokens, f"0 to max_tokens ({self.max_tokens})"
        _require(fits, "min_tokens", self.min_tokens, most)
        for name, attribute in _BOUNDED.items():
            check_range(name, getattr(self, attribute, None))
        for token_id, _ in self.logit_bias:
            _require(token_id >= 0, "logit_bias", f"token {token_id}", "0 and more")
        _require(self.num_beams >= 1, "beam_width", self.num_beams, "1 and more")
        asked = {"logprobs": self.num_logprobs, "prompt_logprobs": self.num_prompt_logprobs}
        for name, number in asked.items():
            if self.num_beams > 1 and number is not None:
                raise RequestError(f"{name}: beams have none; send beam_width 1 for them")
        penalty = 1.0 if self.length_penalty is None else self.length_penalty
        _require(math.isfinite(penalty), "length_penalty", penalty, "a finite number")

    @cached_property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1

    @cached_property
    def filters(self) -> bool:
        return any(getattr(self, name) not in OPTIONS[name].neutral for name in FILTERS)

    @property
    def penalises(self) -> bool:
        of_output = self.frequency_penalty, self.presence_penalty
        return self.repetition_penalty != 1 or any(of_output)

    @cached_property
    def changes_logits(self) -> bool:
        """True if logits are changed before a token is chosen, in any step."""
        return bool(
            self.penalises
            or self.logit_bias
            or self.allowed_token_ids
            or self.bad_token_ids
            or self.min_tokens
            or self.constraint
            or self.rule
        )


def check_range(name: str, value: Any) -> None:
    """Raises RequestError for an option's number out of bounds, also in a list or by token id."""
    option = OPTIONS[name]
    for each in value if isinstance(value, tuple) else (value,):
        one = each[1] if isinstance(each, tuple) else each
        if option.bounds and one is not None and not option.bounds[0] <= one <= option.bounds[1]:
            raise RequestError(f"{name}: got {shown(one)}, allowed: {option.allowed}")


def _require(condition: bool, field: str, got: object, allowed: str) -> None:
    if not condition:
        raise RequestError(f"{field}: got {shown(got)}, allowed: {allowed}")

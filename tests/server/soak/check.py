"""Judges an outcome: None where it is right, else what is wrong with it. Sends nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.server.soak.client import Outcome
from tests.server.soak.reference import HALF_A_CHARACTER, Expected, SoakReference
from tests.server.soak.requests import SoakRequest

_TOLERANCE = 2e-3  # of a log-probability
_REQUEST_ID = re.compile(r"\A\[request id: [^\]]*\] ")
# Triton's own words, with status 500, for HTTP bodies that it can't read.
_NOT_PARSED = ("failed to parse the request JSON", "Unable to parse", "Expected JSON")
_SUMS = ("text_output", "num_output_tokens")  # of a stream's pieces
Choice = dict[str, Any]  # output name -> its value, a stream's pieces put together


@dataclass
class Checker:
    """Remembers what each seeded case answered first: every other answer must be the same."""

    reference: SoakReference
    seeded: dict[str, tuple[str, int]] = field(default_factory=dict)

    def problem(self, request: SoakRequest, outcome: Outcome) -> str | None:
        """What is wrong with an answer."""
        if outcome.hung:
            return "no answer in time"
        if request.kind == "abandoned":
            return _problem_of_abandoned(outcome)
        if request.kind == "malformed":
            return _problem_of_malformed(outcome)
        if outcome.status != 200 or outcome.error:
            if _is_timeout_error(request, outcome):
                return None
            return f"status {outcome.status}: {outcome.error[:300] or 'no answer'}"
        try:
            choices = put_together(request, outcome)
        except ValueError as error:
            return str(error)
        for at, choice in enumerate(choices):
            prompt, index = request.prompts[at // request.num_choices], at % request.num_choices
            found = self._problem_of_choice(request, prompt, index, choice)
            if found:
                return f"choice {at}: {found}"
        return None

    def _problem_of_choice(
        self, request: SoakRequest, prompt: str, index: int, choice: Choice
    ) -> str | None:
        if request.kind == "seeded":
            return self._seeded_differs(request, prompt, index, choice["text_output"])
        expected = self.reference.expected(prompt, request.options)
        if request.kind == "timed" and choice["finish_reason"] == "timeout":
            return self._timed_differs(request.options, expected, choice)
        return _differs(expected, choice)

    def _timed_differs(
        self, options: Mapping[str, Any], expected: Expected, choice: Choice
    ) -> str | None:
        """As many tokens of the whole answer as it says."""
        text, num_tokens = choice["text_output"], choice["num_output_tokens"]
        if not expected.finish_reason and num_tokens > len(expected.token_ids):
            return None
        known = self.reference.decode(expected.token_ids[:num_tokens])
        if not known.startswith(text.rstrip(HALF_A_CHARACTER)) or (
            "stop_words" not in options and text != known
        ):
            return f"out of time: got {text!r}, expected {known!r}"
        return None

    def _seeded_differs(
        self, request: SoakRequest, prompt: str, index: int, text: str
    ) -> str | None:
        sampling = ("seed", "temperature", "max_tokens", "top_k")
        key = repr((prompt, [request.options[name] for name in sampling], index))
        first, number = self.seeded.setdefault(key, (text, request.number))
        if text != first:
            return f"got {text!r}, and request {number} with the same seed {first!r}"
        return None


def put_together(request: SoakRequest, outcome: Outcome) -> list[Choice]:
    """The choices of all rows. Raises ValueError for an answer that has not what was asked for."""
    flags = [name for name in request.options if name.startswith("return_")]
    wanted = {"text_output", *(name.removeprefix("return_") for name in flags)}
    if not outcome.chunks:
        raise ValueError("an answer without outputs")
    num_rows, n = len(request.prompts), request.num_choices
    choices: list[Choice] = [{} for _ in range(num_rows * n)]
    for chunk in outcome.chunks:
        if set(chunk) != wanted:
            raise ValueError(f"outputs: got {sorted(chunk)}, expected {sorted(wanted)}")
        for name, told in chunk.items():
            values = told
            if name == "num_input_tokens":  # one of each row
                values = [value for value in told for _ in range(n)]
            if len(values) != len(choices):
                raise ValueError(f"{name}: got {len(told)} elements, of {num_rows} rows x {n}")
            for choice, value in zip(choices, values, strict=True):
                before = choice.get(name)
                if name in _SUMS and before is not None:
                    choice[name] = before + value
                elif name != "finish_reason" or not before:
                    choice[name] = value
                elif value not in ("", before):
                    raise ValueError(f"two finish reasons: {before} and {value}")
    return choices


def _differs(expected: Expected, choice: Choice) -> str | None:
    """How an answer is other than it must be."""
    text = choice["text_output"]
    if not expected.finish_reason:
        # A stop word may begin in what is known and end in what is not.
        ended_before = len(text) > len(expected.text) - 12 and expected.text.startswith(text)
        if text.startswith(expected.text) or ended_before:
            return None
        return f"got {text!r}, expected a text that begins with {expected.text!r}"
    right = {
        "text_output": expected.text,
        "finish_reason": expected.finish_reason,
        "num_output_tokens": len(expected.token_ids),
        "num_input_tokens": expected.num_input_tokens,
    }
    for name, value in right.items():
        if choice.get(name, value) != value:
            return f"{name}: got {choice[name]!r}, expected {value!r}"
    total = expected.cumulative_logprob
    got = choice.get("cumulative_logprob", total)
    if abs(got - total) > _TOLERANCE * (1 + len(expected.token_ids)):
        return f"cumulative_logprob: got {got}, expected {total}"
    return None


def _is_timeout_error(request: SoakRequest, outcome: Outcome) -> bool:
    return (
        request.options.get("on_timeout") == "error"
        and outcome.status in (400, 503)
        and _said(outcome).startswith("timeout_ms: ")
    )


def _said(outcome: Outcome) -> str:
    """An error without the request's id, which stands before it."""
    return _REQUEST_ID.sub("", outcome.error)


def _problem_of_abandoned(outcome: Outcome) -> str | None:
    """It may have been answered before its caller left; an error must be the caller's own doing."""
    if outcome.status in (0, 200, 504):
        return None
    if outcome.status == 400 and "cancel" in outcome.error.lower():
        return None
    if outcome.error == "Internal error from Core":
        return None  # grpc's own, of a call whose deadline passed while it was being sent
    return f"status {outcome.status}: {outcome.error[:300]}"


def _problem_of_malformed(outcome: Outcome) -> str | None:
    if outcome.status == 200:
        return f"it was answered: {str(outcome.chunks)[:200]}"
    is_tritons_own = outcome.status == 500 and any(text in outcome.error for text in _NOT_PARSED)
    if outcome.status != 400 and not is_tritons_own:
        return f"status {outcome.status} ({outcome.error[:200]}), expected 400"
    if not outcome.error or _said(outcome).startswith("internal error") or outcome.chunks:
        return f"the refusal says {outcome.error[:200]!r} after {len(outcome.chunks)} responses"
    return None

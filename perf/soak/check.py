"""Judges an outcome: None where it is right, else what is wrong with it. Sends nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perf.soak.client import Outcome
from perf.soak.reference import Expected, SoakReference
from perf.soak.request import Row, SoakRequest

LOGPROB_TOLERANCE = 2e-3
_HALF_A_CHARACTER = "\ufffd"
_REQUEST_ID = re.compile(r"\A\[request id: [^\]]*\] ")
# Triton's own words, with status 500, for HTTP bodies that it can't read.
_NOT_PARSED = (
    *("failed to parse the request JSON", "Unable to parse", "attempt to get members"),
    *("Expected JSON", "failed to get request params"),
)


@dataclass
class Choice:
    """One choice's whole answer, its chunks put together; None: that output did not come."""

    text: str = ""
    finish_reason: str | None = None
    num_tokens: int | None = None
    cumulative_logprob: float | None = None
    logprobs: list[dict[str, Any]] | None = None


@dataclass
class Checker:
    """Remembers what each seeded case answered first: every other answer must be the same."""

    reference: SoakReference
    seeded: dict[str, tuple[str, int]] = field(default_factory=dict)
    num_cut_short: int = 0  # greedy answers of which only the beginning is known

    def problem(self, request: SoakRequest, outcome: Outcome) -> str | None:
        """What is wrong with an answer."""
        if outcome.hung:
            return "no answer in time"
        if request.kind == "abandoned":
            return _problem_of_abandoned(outcome)
        if request.kind == "malformed":
            return _problem_of_malformed(request, outcome)
        if outcome.status != 200:
            if _is_timeout_error(request, outcome):
                return None
            return f"status {outcome.status}: {outcome.error[:300] or 'no answer'}"
        if outcome.error:
            return outcome.error
        return self._problem_of_answer(request, outcome)

    def _problem_of_answer(self, request: SoakRequest, outcome: Outcome) -> str | None:
        try:
            choices = put_together(request, outcome)
        except (ValueError, KeyError) as error:
            return f"{type(error).__name__}: {error}"
        for at, choice in enumerate(choices):
            row = request.rows[at // request.num_choices]
            found = self._problem_of_choice(request, row, at % request.num_choices, choice)
            if found:
                return f"choice {at}: {found}"
        return self._problem_of_input_tokens(request, outcome)

    def _problem_of_choice(
        self, request: SoakRequest, row: Row, index: int, choice: Choice
    ) -> str | None:
        text = choice.text
        if not request.common.get("exclude_input_in_output", True):
            prompt = self.reference.prompt_of(row)
            if not text.startswith(prompt):
                return f"the prompt is not repeated: {text[:80]!r}"
            text = text[len(prompt) :]
        if request.kind == "greedy":
            expected = self.reference.expected(row)
            self.num_cut_short += not expected.is_whole
            return _differs(expected, text, choice)
        if request.kind == "timed":
            return self._timed_differs(row, text, choice)
        if request.kind == "seeded":
            return self._seeded_differs(request, row, index, text)
        return _sampled_differs(row, choice)

    def _timed_differs(self, row: Row, text: str, choice: Choice) -> str | None:
        """The whole answer, or as many tokens of it as it says."""
        expected = self.reference.expected(row)
        if choice.finish_reason != "timeout":
            return _differs(expected, text, choice)
        if not expected.is_whole and (choice.num_tokens or 0) > len(expected.token_ids):
            return None
        known = self.reference.decode(expected.token_ids[: choice.num_tokens or 0])
        if not known.startswith(text.rstrip(_HALF_A_CHARACTER)) or (
            not row.options.get("stop_words") and text != known
        ):
            return f"out of time: got {text!r}, expected {known!r}"
        return None

    def _seeded_differs(self, request: SoakRequest, row: Row, index: int, text: str) -> str | None:
        options = {name: value for name, value in row.options.items() if name != "n"}
        key = repr((row.prompt, row.messages, sorted(options.items()), index))
        first, number = self.seeded.setdefault(key, (text, request.number))
        if text != first:
            return f"got {text!r}, and request {number} with the same seed {first!r}"
        return None

    def _problem_of_input_tokens(self, request: SoakRequest, outcome: Outcome) -> str | None:
        expected = [self.reference.num_tokens(row) for row in request.rows]
        for chunk in outcome.chunks:
            told = chunk.get("num_input_tokens")
            if told is not None and told != expected:
                return f"num_input_tokens: got {told}, expected {expected}"
        return None


def put_together(request: SoakRequest, outcome: Outcome) -> list[Choice]:
    """The choices of all rows. Raises ValueError for an answer that has not what was asked for."""
    num = len(request.rows) * request.num_choices
    wanted = wanted_outputs(request)
    if not outcome.chunks:
        raise ValueError("an answer without outputs")
    choices = [Choice() for _ in range(num)]
    for chunk in outcome.chunks:
        if set(chunk) != wanted:
            raise ValueError(f"outputs: got {sorted(chunk)}, expected {sorted(wanted)}")
        for name, values in chunk.items():
            if name == "num_input_tokens":
                continue
            if len(values) != num:
                raise ValueError(f"{name}: got {len(values)} elements, expected {num}")
            for choice, value in zip(choices, values, strict=True):
                _add(choice, name, value)
    return choices


def wanted_outputs(request: SoakRequest) -> set[str]:
    """The outputs that must come: no more, no less."""
    if request.outputs:
        return set(request.outputs)
    flags = [name for name in request.common if name.startswith("return_")]
    wanted = {"text_output", *(name.removeprefix("return_") for name in flags)}
    if any("logprobs" in row.options for row in request.rows):
        wanted.add("logprobs")
    return wanted


def _add(choice: Choice, name: str, value: Any) -> None:
    if name == "text_output":
        choice.text += value
    elif name == "finish_reason":
        if choice.finish_reason and value not in ("", choice.finish_reason):
            raise ValueError(f"two finish reasons: {choice.finish_reason} and {value}")
        choice.finish_reason = choice.finish_reason or value
    elif name == "cumulative_logprob":
        choice.cumulative_logprob = value
    elif name == "logprobs":
        choice.logprobs = [*(choice.logprobs or ()), *json.loads(value)]
    elif name == "num_output_tokens":
        choice.num_tokens = (choice.num_tokens or 0) + value


def _differs(expected: Expected, text: str, choice: Choice) -> str | None:
    """How an answer is other than it must be."""
    if not expected.is_whole:
        if text.startswith(expected.text) or _ended_before(expected, text):
            return None
        return f"got {text!r}, expected a text that begins with {expected.text!r}"
    told: Sequence[tuple[str, Any, Any]] = (
        ("text", text, expected.text),
        ("finish_reason", choice.finish_reason, expected.finish_reason),
        ("num_output_tokens", choice.num_tokens, len(expected.token_ids)),
    )
    for name, got, right in told:
        if got is not None and got != right:
            return f"{name}: got {got!r}, expected {right!r}"
    return _logprobs_differ(expected, choice)


def _ended_before(expected: Expected, text: str) -> bool:
    """A stop word that begins in what is known and ends in what is not."""
    return len(text) > len(expected.text) - 12 and expected.text.startswith(text)


def _logprobs_differ(expected: Expected, choice: Choice) -> str | None:
    if choice.logprobs is not None:
        told = [next(iter(entry.items())) for entry in choice.logprobs]
        if [int(token_id) for token_id, _ in told] != list(expected.token_ids):
            return f"logprobs: got tokens {[i for i, _ in told]}, expected {expected.token_ids}"
        for (_, entry), right in zip(told, expected.logprobs, strict=True):
            if abs(entry["logprob"] - right) > LOGPROB_TOLERANCE:
                return f"logprob: got {entry['logprob']}, expected {right}"
    total = sum(expected.logprobs)
    got = choice.cumulative_logprob
    if got is not None and abs(got - total) > LOGPROB_TOLERANCE * (1 + len(expected.token_ids)):
        return f"cumulative_logprob: got {got}, expected {total}"
    return None


def _sampled_differs(row: Row, choice: Choice) -> str | None:
    most = row.options.get("max_tokens")
    if choice.finish_reason not in (None, "stop", "length"):
        return f"finish_reason: got {choice.finish_reason!r}"
    if choice.num_tokens is not None and most and not 1 <= choice.num_tokens <= most:
        return f"num_output_tokens: got {choice.num_tokens}, allowed: 1 to {most}"
    if choice.logprobs is not None and choice.num_tokens not in (None, len(choice.logprobs)):
        return f"{len(choice.logprobs)} log-probabilities of {choice.num_tokens} tokens"
    return None


def _is_timeout_error(request: SoakRequest, outcome: Outcome) -> bool:
    return (
        request.kind == "timed"
        and request.common["on_timeout"] == "error"
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


def _problem_of_malformed(request: SoakRequest, outcome: Outcome) -> str | None:
    if outcome.status == 200:
        return f"it was answered: {str(outcome.chunks)[:200]}"
    is_tritons_own = outcome.status == 500 and any(text in outcome.error for text in _NOT_PARSED)
    if outcome.status not in request.allowed and not is_tritons_own:
        allowed = " or ".join(map(str, request.allowed))
        return f"status {outcome.status} ({outcome.error[:200]}), expected {allowed}"
    if not outcome.error or _said(outcome).startswith("internal error") or outcome.chunks:
        return f"the refusal says {outcome.error[:200]!r} after {len(outcome.chunks)} responses"
    return None

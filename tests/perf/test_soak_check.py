"""The soak's judge: it lets right answers pass and says what is wrong with the others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from perf.soak.check import Checker
from perf.soak.client import Outcome
from perf.soak.reference import SoakReference, cut_at_stop_word
from perf.soak.request import Row, SoakRequest
from perf.soak.server import DEMO_MODEL

PROMPT = "I am going"


@pytest.fixture(scope="module")
def reference() -> SoakReference:
    return SoakReference(DEMO_MODEL)


@pytest.fixture
def checker(reference: SoakReference) -> Checker:
    return Checker(reference)


def request(kind: str = "greedy", prompt: str = PROMPT, **options: Any) -> SoakRequest:
    return SoakRequest(7, kind, "grpc", "demo", (Row(prompt, options=options),), allowed=(400,))


def answer(*texts: str, **outputs: list[Any]) -> Outcome:
    chunks = [{"text_output": [text], **outputs} for text in texts]
    return Outcome(200, chunks=chunks)


def test_a_shorter_answer_is_the_beginning_of_a_longer_one(reference: SoakReference) -> None:
    long = reference.expected(Row(PROMPT, options={"max_tokens": 20}))
    short = reference.expected(Row(PROMPT, options={"max_tokens": 5}))

    assert (len(long.token_ids), len(short.token_ids)) == (20, 5)
    assert long.text.startswith(short.text)
    assert short.finish_reason == "length"


def test_what_the_tests_reference_says_is_expected(reference: SoakReference) -> None:
    from tests.scenarios.reference import Reference

    other = Reference(DEMO_MODEL)
    num_whole = 0
    for prompt in ("Hello", "The end", "Once upon a time"):
        for options in (
            {},
            {"repetition_penalty": 1.5},
            {"frequency_penalty": 1.5, "presence_penalty": 0.75},
            {"bad_words": ["the", "was"]},
            {"min_tokens": 30},
        ):
            row = Row(prompt, options={"max_tokens": 40, **options})
            right, got = other.answer(prompt, 40, **options), reference.expected(row)
            if got.is_whole:
                assert (got.text, got.token_ids) == (right.text, right.token_ids)
                assert got.finish_reason == right.finish_reason
            num_whole += got.is_whole
    assert num_whole > 10


def test_a_stop_word_cuts_once_min_tokens_are_there(reference: SoakReference) -> None:
    whole = reference.expected(Row(PROMPT, options={"max_tokens": 30})).text
    word = whole[10:14]
    options = {"max_tokens": 30, "stop_words": [word]}

    cut = reference.expected(Row(PROMPT, options=options))
    included = reference.expected(
        Row(PROMPT, options={**options, "include_stop_str_in_output": True})
    )
    late = reference.expected(Row(PROMPT, options={**options, "min_tokens": 30}))

    assert cut.text == whole[: whole.index(word)]
    assert included.text == cut.text + word
    assert cut.finish_reason == "stop"
    assert late.text == whole


@pytest.mark.parametrize(
    "text, num_searched, cut",
    [("say stop it", 0, "say "), ("say stop it", 9, None), ("say stop", 7, "say ")],
)
def test_only_words_that_end_in_new_text_cut(text: str, num_searched: int, cut: str | None) -> None:
    assert cut_at_stop_word(text, num_searched, ("stop",), includes=False) == cut


def test_right_answers_pass_whole_and_in_chunks(checker: Checker, reference: SoakReference) -> None:
    asked = request(max_tokens=8)
    expected = reference.expected(asked.rows[0])

    assert checker.problem(asked, answer(expected.text)) is None
    assert checker.problem(asked, answer(expected.text[:3], "", expected.text[3:])) is None


def test_each_wrong_part_is_named(checker: Checker, reference: SoakReference) -> None:
    asked = replace(
        request(max_tokens=4),
        common={"return_finish_reason": True, "return_num_output_tokens": True},
    )
    expected = reference.expected(asked.rows[0])
    right: dict[str, list[Any]] = {"finish_reason": ["length"], "num_output_tokens": [4]}

    def said(text: str, **outputs: list[Any]) -> str:
        return checker.problem(asked, answer(text, **{**right, **outputs})) or ""

    assert said(expected.text) == ""
    assert "text: got" in said(expected.text + "!")
    assert "finish_reason: got" in said(expected.text, finish_reason=["stop"])
    assert "num_output_tokens: got" in said(expected.text, num_output_tokens=[5])
    assert "outputs: got" in (checker.problem(asked, answer(expected.text)) or "")


def test_log_probabilities_are_compared(checker: Checker, reference: SoakReference) -> None:
    asked = request(max_tokens=3, logprobs=0)
    expected = reference.expected(asked.rows[0])

    def told(shift: float) -> str:
        pairs = zip(expected.token_ids, expected.logprobs, strict=True)
        return json.dumps([{str(token): {"logprob": value + shift}} for token, value in pairs])

    for shift, problem in ((0.0, None), (1.0, "logprob: got")):
        found = checker.problem(asked, answer(expected.text, logprobs=[told(shift)]))
        assert found is problem or (problem and problem in (found or ""))


def test_a_seed_must_say_the_same_again(checker: Checker) -> None:
    asked = request("seeded", seed=3, temperature=1.0, max_tokens=4)

    assert checker.problem(asked, answer("a b")) is None
    assert checker.problem(replace(asked, number=8), answer("a b")) is None
    assert "request 7" in (checker.problem(replace(asked, number=9), answer("a c")) or "")


def test_a_request_out_of_time_says_the_beginning(
    checker: Checker, reference: SoakReference
) -> None:
    asked = replace(
        request("timed", max_tokens=20),
        common={"timeout_ms": 5, "on_timeout": "error", "return_finish_reason": True},
    )
    expected = reference.expected(asked.rows[0])
    late: dict[str, list[Any]] = {"finish_reason": ["timeout"]}

    assert checker.problem(asked, answer("", **late)) is None
    assert "out of time" in (checker.problem(asked, answer("other", **late)) or "")
    whole: dict[str, list[Any]] = {"finish_reason": ["length"]}
    assert checker.problem(asked, answer(expected.text, **whole)) is None
    for said in ("timeout_ms: the time is up", "[request id: 7] timeout_ms: the time is up"):
        assert checker.problem(asked, Outcome(503, said)) is None
    assert checker.problem(asked, Outcome(500, "timeout_ms: the time is up"))


def test_malformed_requests_must_be_refused_for_a_reason(checker: Checker) -> None:
    asked = request("malformed")

    assert checker.problem(asked, Outcome(400, "max_tokens: got 0, allowed: 1 or more")) is None
    assert checker.problem(asked, Outcome(500, "Unable to parse 'data'")) is None
    assert "answered" in (checker.problem(asked, answer("x")) or "")
    assert checker.problem(asked, Outcome(400, "internal error: KeyError"))
    assert checker.problem(asked, Outcome(500, "KeyError"))
    assert checker.problem(asked, Outcome(0, ""))


def test_nobody_may_wait_for_ever(checker: Checker) -> None:
    for kind in ("greedy", "malformed", "abandoned"):
        assert checker.problem(request(kind), Outcome(hung=True)) == "no answer in time"

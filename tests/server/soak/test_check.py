"""The soak's judge: it lets right answers pass and says what is wrong with the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.scenarios.reference import Reference
from tests.server.soak.check import Checker
from tests.server.soak.client import Outcome
from tests.server.soak.reference import SoakReference, cut_at_stop_word
from tests.server.soak.requests import BATCHED, SoakRequest, drawn, grpc_message, http_message
from tests.support.triton import DEMO_MODEL

PROMPT = "I am going"


@pytest.fixture(scope="module")
def reference() -> SoakReference:
    return SoakReference(DEMO_MODEL)


@pytest.fixture
def checker(reference: SoakReference) -> Checker:
    return Checker(reference)


def request(kind: str = "greedy", **options: Any) -> SoakRequest:
    return SoakRequest(7, kind, "grpc", "demo", (PROMPT,), {"max_tokens": 4, **options})


def answer(*texts: str, **outputs: list[Any]) -> Outcome:
    return Outcome(200, chunks=[{"text_output": [text], **outputs} for text in texts])


@pytest.mark.slow
def test_what_the_other_tests_reference_says_is_expected(reference: SoakReference) -> None:
    other, num_whole = Reference(DEMO_MODEL), 0
    for prompt in ("Hello", "The end", "Once upon a time"):
        for options in (
            {},
            {"repetition_penalty": 1.5},
            {"frequency_penalty": 1.5, "presence_penalty": 0.75},
            {"min_tokens": 30},
        ):
            right = other.answer(prompt, 40, **options)
            got = reference.expected(prompt, {"max_tokens": 40, **options})
            if got.finish_reason:
                assert (got.text, got.token_ids) == (right.text, right.token_ids)
                assert got.finish_reason == right.finish_reason
                num_whole += 1
    assert num_whole > 8


@pytest.mark.parametrize(
    "text, num_searched, cut",
    [("say stop it", 0, "say "), ("say stop it", 9, None), ("say stop", 7, "say ")],
)
def test_only_words_that_end_in_new_text_cut(text: str, num_searched: int, cut: str | None) -> None:
    assert cut_at_stop_word(text, num_searched, ("stop",)) == cut


def test_each_wrong_part_is_named(checker: Checker, reference: SoakReference) -> None:
    asked = request(return_finish_reason=True, return_num_output_tokens=True)
    text = reference.expected(PROMPT, asked.options).text
    right: dict[str, list[Any]] = {"finish_reason": ["length"], "num_output_tokens": [4]}

    def said(text: str, **outputs: list[Any]) -> str:
        return checker.problem(asked, answer(text, **{**right, **outputs})) or ""

    assert said(text) == ""
    assert checker.problem(request(), answer(text[:3], "", text[3:])) is None
    assert "text_output: got" in said(text + "!")
    assert "finish_reason: got" in said(text, finish_reason=["stop"])
    assert "num_output_tokens: got" in said(text, num_output_tokens=[5])
    assert "outputs: got" in (checker.problem(asked, answer(text)) or "")
    total = request(return_cumulative_logprob=True)
    assert "logprob: got" in (
        checker.problem(total, answer(text, cumulative_logprob=[-99.0])) or ""
    )


def test_a_seed_must_say_the_same_again(checker: Checker) -> None:
    asked = request("seeded", seed=3, temperature=1.0, top_k=0)
    assert checker.problem(asked, answer("a b")) is None
    assert checker.problem(replace(asked, number=8), answer("a b")) is None
    assert "request 7" in (checker.problem(replace(asked, number=9), answer("a c")) or "")


def test_a_request_out_of_time_says_the_beginning(checker: Checker) -> None:
    asked = request(
        "timed", on_timeout="error", return_finish_reason=True, return_num_output_tokens=True
    )
    late: dict[str, list[Any]] = {"finish_reason": ["timeout"], "num_output_tokens": [0]}
    assert checker.problem(asked, answer("", **late)) is None
    assert "out of time" in (checker.problem(asked, answer("other", **late)) or "")
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


@pytest.mark.parametrize("kind", ["greedy", "malformed", "abandoned"])
def test_nobody_may_wait_for_ever(checker: Checker, kind: str) -> None:
    assert checker.problem(request(kind), Outcome(hung=True)) == "no answer in time"


def test_requests_are_the_same_again_of_every_kind_and_can_be_packed() -> None:
    requests = [drawn(0, number) for number in range(1000)]
    assert [drawn(0, number) for number in range(999, -1, -1)] == requests[::-1]
    kinds = Counter(one.kind for one in requests)
    assert set(kinds) == {"greedy", "seeded", "timed", "malformed", "abandoned"}
    assert min(kinds.values()) > 50
    assert kinds["greedy"] > 400
    assert any(len(one.prompts) > 1 for one in requests if one.model in BATCHED)
    for one in requests:
        if one.way.startswith("grpc"):
            assert grpc_message(one).SerializeToString()
        else:
            assert http_message(one).startswith(b"POST ")

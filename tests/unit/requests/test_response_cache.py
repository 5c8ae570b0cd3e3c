"""A kept answer is given to who asks the very same with the same salt, and an error never is."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_triton.runtime.errors import OverloadedError, RequestError
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.request_parameters import (
    CACHE_SALT,
    CALL,
    CALLER,
    read_parameters,
    salt_of,
)
from hf_triton.runtime.request.response_cache import ResponseCache, request_key
from tests.support.intake_driver import Array, Caller, driving, strings
from tests.support.request_fields import fields

ALL = ("text_output", "score")


def numbers(cache: ResponseCache) -> dict[str, float]:
    prefix = "hf_triton_response_cache_"
    return {f.name.removeprefix(prefix): f.samples[0].value for f in cache.families()}


def test_the_same_request_is_computed_once(tmp_path: Path) -> None:
    with driving(tmp_path, cache_mib=1) as driver:
        first, second, other = driver.ask("a"), driver.ask("a"), driver.ask("b")
        assert first.responses == second.responses
        assert other.responses[0]["text_output"] == [b"b"]
        assert [r.inputs["text_input"][0] for r in driver.taken] == [b"a", b"b"]


@pytest.mark.threat("response-cache")
def test_every_part_of_a_request_counts() -> None:
    one = np.array([1], dtype=np.int32)
    different: list[tuple[dict[str, Array], dict[str, Any], tuple[str, ...]]] = [
        ({"text_input": strings("ab")}, {}, ALL),
        ({"text_input": strings("a", "b")}, {}, ALL),
        ({"text_input": strings("a|1|b")}, {}, ALL),
        ({"text_input": strings("a", "b").reshape(2, 1)}, {}, ALL),
        ({"words": strings("ab")}, {}, ALL),
        ({"text_input": strings("ab"), "top_k": one}, {}, ALL),
        ({"text_input": strings("ab"), "top_k": one + 1}, {}, ALL),
        ({"text_input": strings("ab"), "top_k": one.astype(np.int64)}, {}, ALL),
        ({"text_input": strings("ab"), "flag": one}, {}, ALL),
        ({"text_input": strings("ab")}, {"top_k": 1}, ALL),
        ({"text_input": strings("ab")}, {"top_k": "1"}, ALL),
        ({"text_input": strings("ab")}, {}, ALL[:1]),
    ]
    keys = {request_key(Request(i, p, Caller(), listed)) for i, p, listed in different}
    assert len(keys) == len(different)


def test_what_says_nothing_to_the_model_does_not_count() -> None:
    inputs = {"text_input": strings("ab"), "flag": np.array([True])}
    backwards = dict(reversed(inputs.items()))
    plain = request_key(Request(inputs, {}, Caller(), ALL))
    assert plain == request_key(Request(backwards, {"id": "7"}, Caller(), ALL[::-1]))
    final = {"triton_final_response": True}
    assert plain == request_key(Request(inputs, final, Caller(), ALL))


@pytest.mark.threat("shared-prefix-timing")
def test_answers_of_another_salt_are_not_given(tmp_path: Path) -> None:
    parameters: list[dict[str, Any]] = [
        {},
        {"cache_salt": "a"},
        {"cache_salt": "b"},
        {"hf-triton-caller": "a"},
        {"hf-triton-caller": "a", "cache_salt": "a"},
    ]
    with driving(tmp_path, cache_mib=1) as driver:
        for _ in range(2):
            for given in parameters:
                assert driver.ask("the same", parameters=given).text == "the same"
        assert len(driver.taken) == len(parameters)
        assert isinstance(driver.ask("a", parameters={"cache_salt": 7}).error, RequestError)


def test_a_caller_gets_the_outputs_that_it_lists(tmp_path: Path) -> None:
    with driving(tmp_path, cache_mib=1) as driver:
        for listed in (("text_output",), ("score",), ALL, ("text_output",)):
            (answer,) = driver.ask("a", listed=listed).responses
            assert tuple(answer) == listed
        assert len(driver.taken) == 3


def test_an_error_is_never_kept(tmp_path: Path) -> None:
    is_busy = True

    def task(request: Request) -> None:
        if is_busy:
            raise OverloadedError("try again")
        request.responder.send({"text_output": strings("x")}, final=True)

    with driving(tmp_path, cache_mib=1) as driver:
        driver.take = task
        assert isinstance(driver.ask("a").error, OverloadedError)
        assert isinstance(driver.ask("a").error, OverloadedError)
        is_busy = False
        assert driver.ask("a").text == "x"
        assert driver.ask("a").text == "x"
        assert len(driver.taken) == 3


def test_hooks_run_for_every_request_and_change_no_kept_answer(tmp_path: Path) -> None:
    hooks = (
        "import itertools\nnumbers = itertools.count()\n"
        "def preprocess(request):\n    request['text_input'] = request.text('text_input').upper()\n"
        "def postprocess(response):\n    response['score'] += next(numbers)\n"
    )
    with driving(tmp_path, hooks, cache_mib=1) as driver:
        answers = [driver.ask(text).responses[0] for text in ("a", "A", "a")]
        assert [answer["score"] for answer in answers] == [[0.5], [1.5], [2.5]]
        assert {answer["text_output"][0] for answer in answers} == {b"A"}
        assert len(driver.taken) == 1


def test_what_was_not_asked_for_the_longest_is_forgotten_first() -> None:
    cache = ResponseCache(3000)
    assert not any(numbers(cache).values())
    for text in "abcde":
        if text == "d":
            assert was_kept(cache, "a")
        ask(cache, text, np.zeros(100, dtype=np.float32))
    assert [text for text in "abcde" if was_kept(cache, text)] == ["a", "d", "e"]
    found = numbers(cache)
    assert (found["entries"], found["hits_total"]) == (3, 4)
    assert found["bytes"] <= 3000


def test_an_answer_that_is_larger_than_all_is_not_kept() -> None:
    cache = ResponseCache(3000)
    ask(cache, "a", np.zeros(10, dtype=np.float32))
    ask(cache, "b", np.zeros(10_000, dtype=np.float32))
    ask(cache, "c", strings("x" * 10_000))
    assert [text for text in "abc" if was_kept(cache, text)] == ["a"]


def test_an_answer_kept_twice_is_counted_once() -> None:
    cache = ResponseCache(10_000)
    late: list[Request] = []
    for _ in range(2):  # both arrive before either is answered
        cache.receive(request("a"), late.append)
    for one in late:
        one.responder.send({"score": np.zeros(100, dtype=np.float32)}, final=True)
    assert numbers(cache) == {"hits_total": 0, "misses_total": 2, "entries": 1, "bytes": 912}


def request(text: str) -> Request:
    return Request({"text_input": strings(text)}, {}, Caller(), ALL)


def ask(cache: ResponseCache, text: str, answer: Array) -> None:
    cache.receive(request(text), lambda one: one.responder.send({"score": answer}, final=True))


def was_kept(cache: ResponseCache, text: str) -> bool:
    computed: list[object] = []
    cache.receive(request(text), computed.append)
    return not computed


WITHOUT_SALT = "cache_salt: got {}, allowed: a text of 1 to 256 characters"


def test_caller_and_salt_both_separate() -> None:
    salts = [
        salt_of(parameters)
        for parameters in (
            {},
            {CACHE_SALT: "a"},
            {CACHE_SALT: "b"},
            {CALLER: "a"},
            {CALLER: "b"},
            {CALLER: "a", CACHE_SALT: "b"},
            {CALLER: "ab", CACHE_SALT: "b"},
            {CALLER: "a", CACHE_SALT: "bb"},
        )
    ]
    assert salts[0] is salt_of({"user": "somebody"}) is None
    assert all(one != other for one, other in itertools.combinations(salts, 2))
    assert salt_of({CALLER: "a", CACHE_SALT: "b", "user": "c"}) == salts[5]


@pytest.mark.parametrize(
    "given, got",
    [
        ("", "an empty text"),
        ("x" * 257, "257 characters"),
        (1234, "a value of another type"),
        (True, "a value of another type"),
    ],
)
def test_what_is_no_salt_is_refused_unquoted(given: Any, got: str) -> None:
    with pytest.raises(RequestError) as refusal:
        salt_of({CACHE_SALT: given})
    assert str(refusal.value) == WITHOUT_SALT.format(got)
    assert salt_of({CACHE_SALT: "é" * 256})


def test_every_task_takes_a_salt_and_checks_it() -> None:
    given = {"text_input": [b"abc"]}
    fields(given, {CACHE_SALT: "a", CALLER: "b"}).check_parameters(["top_k"])
    with pytest.raises(RequestError, match="got an empty text, allowed"):
        fields(given, {CACHE_SALT: ""}).check_parameters(["top_k"])


def test_headers_are_read_however_they_are_spelt_but_for_the_call() -> None:
    """A call's id differs each time, and a response cache goes by parameters."""
    given = {"HF-Triton-Caller": "a", CALL: "a" * 32, "top_k": 3}
    assert read_parameters(json.dumps(given)) == {CALLER: "a", "top_k": 3}
    assert read_parameters("") == read_parameters("{}") == {}


@pytest.mark.threat("callers-name")
def test_nobody_becomes_another_caller_by_a_parameter_of_that_name() -> None:
    """Triton appends the header to the body's parameters, so that a name can be there twice."""
    victim = salt_of(read_parameters('{"hf-triton-caller": "victim"}'))
    for text in (
        '{"hf-triton-caller": "victim", "hf-triton-caller": "attacker"}',
        '{"hf-triton-caller": "attacker", "hf-triton-caller": "victim"}',
        '{"HF-Triton-Caller": "victim", "hf-triton-caller": "attacker"}',
        '{"hf-triton-caller": "attacker", "HF-TRITON-CALLER": "victim"}',
    ):
        assert salt_of(read_parameters(text)) not in (victim, None)


@pytest.mark.threat("alike-salts")
def test_two_callers_are_none_whose_name_looks_like_both() -> None:
    two = read_parameters('{"hf-triton-caller": "a", "hf-triton-caller": "b"}')
    one = read_parameters('{"hf-triton-caller": "a,b"}')
    assert salt_of(two) != salt_of(one)
    assert read_parameters(json.dumps(two)) == two, "hooks get them as parameters again"

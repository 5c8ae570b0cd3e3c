"""Requests share a cache by their caller and ``cache_salt`` together."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.request_parameters import (
    CACHE_SALT,
    CALL,
    CALLER,
    read_parameters,
    salt_of,
)
from tests.support.request_fields import fields

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

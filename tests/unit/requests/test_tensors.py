"""Requests are read row by row, from tensors or parameters, and never quoted in an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.tensors import boolean, integer, number, text
from tests.support.request_fields import fields

SECRET = b"a prompt that no log may show"


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(RequestError) as raised:
        call()
    assert raised.value.status == "INVALID_ARG"
    return str(raised.value)


def test_text_that_is_not_utf8_is_refused_without_quoting_it() -> None:
    one = fields({"text_input": [SECRET + b"\xff"]}, {})
    expected = f"text_input: not valid UTF-8 at byte {len(SECRET)}"
    assert error_of(lambda: one.optional_texts("text_input")) == expected


def test_a_value_given_twice_is_refused() -> None:
    one = fields({"text_input": [b"t"], "max_tokens": [5]}, {"max_tokens": 5})
    expected = "max_tokens: given as a tensor and as a parameter, send one of them"
    assert error_of(lambda: one.values("max_tokens", integer, None)) == expected


@pytest.mark.parametrize(
    "convert, value, expected",
    [
        (integer, 1.5, "f: got 1.5, allowed: an integer"),
        (integer, True, "f: got true, allowed: an integer"),
        (integer, SECRET.decode(), "f: got a text, allowed: an integer"),
        (number, False, "f: got false, allowed: a number"),
        (number, SECRET.decode(), "f: got a text, allowed: a number"),
        (integer, {"a": SECRET}, "f: got an object, allowed: an integer"),
        (number, None, "f: got null, allowed: a number"),
        (number, 10**400, "f: got an integer too large for a number"),
        (boolean, 10**100, "f: got an integer of more than 30 digits, allowed: true or false"),
        (text, 5, "f: got 5, allowed: a text"),
        (boolean, 1, "f: got 1, allowed: true or false"),
        (boolean, "true", "f: got a text, allowed: true or false"),
    ],
)
def test_a_wrong_type_is_refused_without_quoting_a_text(
    convert: Callable[[str, Any], Any], value: Any, expected: str
) -> None:
    assert error_of(lambda: convert("f", value)) == expected


@pytest.mark.parametrize(
    "name, expected",
    [
        ("max_tokns", "max_tokns: unknown parameter, did you mean max_tokens? allowed: "),
        ("zzz", "zzz: unknown parameter; allowed: "),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_nearest(name: str, expected: str) -> None:
    one = fields({"text_input": [b"t"]}, {name: 1})
    known = ("max_tokens", "top_k")
    assert error_of(lambda: one.check_parameters(known)) == expected + "max_tokens, top_k"


@pytest.mark.parametrize("name", ["id", "timeout", "priority", "binary_data_output", "triton_x"])
def test_tritons_own_parameters_pass(name: str) -> None:
    fields({"text_input": [b"t"]}, {name: 1}).check_parameters(("max_tokens",))


def test_a_text_that_may_be_missing_is_none_and_an_empty_one_empty() -> None:
    batch = fields({"messages": [[b"a"], [b""]]}, {"tools": "t", "stop_words": 5}, batched=True)
    batch.count_rows("messages")
    assert batch.optional_texts("messages") == ["a", ""]
    assert batch.optional_texts("text_input") == [None, None]
    assert batch.optional_texts("tools") == ["t", "t"]
    assert error_of(lambda: batch.text_lists("stop_words")) == "stop_words: got 5, allowed: a text"

"""Scenarios: requests that are refused, what they are told, and that nobody else is harmed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from wire import Request, strings

from tests.scenarios.endpoint import Model
from tests.scenarios.reference import Reference

SECRET = "hf_SecretThatNobodyMaySee0123456789"
NAN, INF = math.nan, math.inf
# Some for each way an option travels; tests/unit/requests holds the ranges of all options. The
# option, its value, how it is given, and what the refusal names.
BAD_OPTIONS: list[tuple[str, Any, str, tuple[str, ...]]] = [
    ("max_tokens", 2**31 - 1, "tensors", (str(2**31 - 1),)),
    ("max_tokens", 2.5, "parameters", ("2.5", "integer")),
    ("temperature", NAN, "tensors", ("nan", "0")),
    ("seed", -1, "parameters", ("-1", "0 to")),
    ("stop_words", 5, "parameters", ("a text",)),
]


def refused(model: Model, reference: Reference, bad: Request, status: int = 400) -> str:
    """The refusal's text; its neighbours are answered all the same."""
    good = model.by_tensors("I am going", max_tokens=6)
    expected = reference.text("I am going", 6)

    before, reply, after = model.infer_together([good, bad, good])

    assert reply.status == status, reply
    assert SECRET not in reply.error
    assert [before.text(), after.text()] == [expected, expected]
    return reply.error


class BadRequests:
    """Each is a 4xx that names the field and what is allowed."""

    @pytest.mark.parametrize("name, value, how, named", BAD_OPTIONS)
    def test_an_option_out_of_its_range_is_refused(
        self,
        model: Model,
        reference: Reference,
        name: str,
        value: Any,
        how: str,
        named: tuple[str, ...],
    ) -> None:
        options = {"max_tokens": 6, name: value}
        error = refused(model, reference, model.request(how, SECRET, **options))

        assert error.startswith(f"{name}: ")
        assert all(text in error for text in named), error

    def test_prompt_and_max_tokens_beyond_the_context_are_refused_with_the_numbers(
        self, model: Model, reference: Reference
    ) -> None:
        error = refused(
            model, reference, model.by_tensors(reference.prompt_of(900), max_tokens=125)
        )
        assert "max_tokens" in error
        assert all(number in error for number in ("900", "125", str(reference.context))), error

        beyond = reference.context + 1
        error = refused(model, reference, model.by_tensors(reference.prompt_of(beyond)))
        assert str(beyond) in error

    def test_a_text_that_is_not_utf_8_is_refused(self, model: Model, reference: Reference) -> None:
        text = SECRET.encode() + b"\xf0\x9f"
        error = refused(model, reference, model.by_tensors(text))
        assert error.startswith("text_input: not valid UTF-8")

        error = refused(model, reference, model.by_tensors(SECRET, stop_words=["ok", text]))
        assert error.startswith("stop_words: not valid UTF-8")

    @pytest.mark.parametrize(
        "changed, said",
        [
            ({"text_input": None}, ""),
            ({"text_input": strings(SECRET, "Once")}, "unexpected shape for input 'text_input'"),
            ({"prompt": strings(SECRET)}, "'prompt'"),
            ({"max_tokens": np.array([3], np.int64)}, "'max_tokens' data-type is"),
        ],
        ids=["nothing", "two texts", "an undeclared tensor", "a wrong type"],
    )
    def test_what_the_config_does_not_declare_is_refused(
        self, model: Model, reference: Reference, changed: dict[str, Any], said: str
    ) -> None:
        """By Triton, most of it."""
        given = {**model.by_tensors(SECRET).tensors, **changed}
        tensors = {name: value for name, value in given.items() if value is not None}
        if model.batched:
            tensors = {name: value.reshape(1, -1) for name, value in tensors.items()}

        assert said in refused(model, reference, Request(tensors))

"""Scenarios: requests that are refused, what they are told, and that nobody else is harmed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from wire import Request, strings

from tests.scenarios.endpoint import Model
from tests.scenarios.reference import Reference

SECRET = "hf_SecretThatNobodyMaySee0123456789"
NAN, INF = math.nan, math.inf
WAYS = ("tensors", "parameters")

# What travels otherwise than a number in its range: the ranges of all options are held by
# tests/engine/requests. The option, its value, how it is given, and what the refusal names.
BAD_OPTIONS: list[tuple[str, Any, str, tuple[str, ...]]] = [
    *(("max_tokens", 0, how, ("1",)) for how in WAYS),
    ("max_tokens", 2**31 - 1, "tensors", (str(2**31 - 1),)),
    ("max_tokens", 2**63 - 1, "parameters", (str(2**63 - 1),)),
    ("max_tokens", 2.5, "parameters", ("2.5", "integer")),
    ("max_tokens", True, "parameters", ("true", "integer")),
    ("max_tokens", "seven", "parameters", ("integer",)),
    *(("temperature", NAN, how, ("nan", "0")) for how in WAYS),
    *(("temperature", INF, how, ("inf", "0")) for how in WAYS),
    ("temperature", False, "parameters", ("false", "number")),
    *(("top_p", 1.5, how, ("0", "1")) for how in WAYS),
    ("seed", -1, "parameters", ("-1", "0 to")),
    ("return_finish_reason", "yes", "parameters", ("true or false",)),
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

    def test_prompt_and_max_tokens_beyond_the_context_are_refused_with_both_numbers(
        self, model: Model, reference: Reference
    ) -> None:
        prompt = reference.prompt_of(900)
        error = refused(model, reference, model.by_tensors(prompt, max_tokens=125))

        assert "max_tokens" in error
        assert all(number in error for number in ("900", "125", str(reference.context))), error

    def test_a_prompt_beyond_the_context_is_refused(
        self, model: Model, reference: Reference
    ) -> None:
        prompt = reference.prompt_of(reference.context + 1)
        error = refused(model, reference, model.by_tensors(prompt))

        assert str(reference.context + 1) in error
        assert str(reference.context) in error

    @pytest.mark.threat("huge-input")
    @pytest.mark.parametrize("text", ["on " * 3_400_000, "é🙂" * 1_700_000], ids=["words", "emoji"])
    def test_a_prompt_of_ten_megabytes_is_refused(
        self, model: Model, reference: Reference, text: str
    ) -> None:
        error = refused(model, reference, model.by_tensors(text))

        assert error.startswith("text_input: ")
        assert str(reference.context) in error

    def test_an_empty_text_is_refused(self, model: Model, reference: Reference) -> None:
        error = refused(model, reference, model.by_tensors(""))

        assert error.startswith("text_input: empty")

    def test_a_request_without_text_is_refused(self, model: Model, reference: Reference) -> None:
        without = dict(model.by_tensors(SECRET, max_tokens=6).tensors)
        del without["text_input"]

        assert "text_input" in refused(model, reference, Request(without))
        # In a batch Triton refuses a request of no tensor itself: it has no number of rows.
        named = "0 inputs" if model.batched else "text_input"
        assert named in refused(model, reference, Request({}))

    @pytest.mark.parametrize(
        "text", [b"caf\xc3(", b"\xff", b"\xed\xa0\x80", SECRET.encode() + b"\xf0\x9f"]
    )
    def test_a_text_that_is_not_utf_8_is_refused(
        self, model: Model, reference: Reference, text: bytes
    ) -> None:
        error = refused(model, reference, model.by_tensors(text))
        assert error.startswith("text_input: not valid UTF-8")

        error = refused(model, reference, model.by_tensors(SECRET, stop_words=["ok", text]))
        assert error.startswith("stop_words: not valid UTF-8")

    def test_an_unknown_parameter_is_refused_with_the_nearest_known(
        self, model: Model, reference: Reference
    ) -> None:
        error = refused(model, reference, model.by_parameters(SECRET, max_tokns=6))

        assert error.startswith("max_tokns: unknown parameter")
        assert "did you mean max_tokens" in error

    def test_an_option_given_twice_is_refused(self, model: Model, reference: Reference) -> None:
        twice = model.by_tensors(SECRET, max_tokens=6)
        twice = dataclasses.replace(twice, parameters={"max_tokens": 6})

        error = refused(model, reference, twice)

        assert error.startswith("max_tokens: ")
        assert "tensor" in error
        assert "parameter" in error

    def test_an_undeclared_tensor_is_refused(self, model: Model, reference: Reference) -> None:
        tensors = dict(model.by_tensors(SECRET).tensors)
        error = refused(model, reference, Request({**tensors, "prompt": tensors["text_input"]}))

        assert "'prompt'" in error

    def test_an_undeclared_output_is_refused(self, model: Model, reference: Reference) -> None:
        assert "'logits'" in refused(model, reference, model.by_tensors(SECRET, "logits"))

    def test_a_wrong_rank_is_refused(self, model: Model, reference: Reference) -> None:
        wrong = strings(SECRET) if model.batched else strings(SECRET).reshape(1, 1)
        error = refused(model, reference, Request({"text_input": wrong}))

        assert "unexpected shape for input 'text_input'" in error
        assert "Expected" in error

    def test_two_texts_in_one_row_are_refused(self, model: Model, reference: Reference) -> None:
        two = strings(SECRET, "Once")
        wrong = two.reshape(1, 2) if model.batched else two

        error = refused(model, reference, Request({"text_input": wrong}))

        assert "unexpected shape for input 'text_input'" in error

    @pytest.mark.parametrize(
        "name, wrong_type", [("max_tokens", np.int64), ("temperature", np.float64)]
    )
    def test_a_wrong_type_is_refused(
        self, model: Model, reference: Reference, name: str, wrong_type: Any
    ) -> None:
        tensors = dict(model.by_tensors(SECRET, **{name: 3}).tensors)
        tensors[name] = tensors[name].astype(wrong_type)

        error = refused(model, reference, Request(tensors))

        assert f"'{name}' data-type is" in error

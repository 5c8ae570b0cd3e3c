"""A request becomes generations, or an error that names the field, the value and the range."""

from __future__ import annotations

from typing import Any

import pytest
from hf_runtime.errors import RequestError, UnsupportedError
from text_generation.request import GenerationRequest, PromptReader, parse_request
from text_generation.sampling_params import MAX_SEED, SamplingParams

from tests.engine.request_fields import fields

CONTEXT = 50
BIG = 2**31 - 1


def check_length(num_prompt_tokens: int, max_tokens: int) -> None:
    if num_prompt_tokens + max_tokens > CONTEXT:
        raise RequestError(f"too long: {num_prompt_tokens} and {max_tokens}")


READER = PromptReader(
    tokenize=lambda text: [ord(character) for character in text],
    default_max_tokens=lambda num_prompt_tokens: min(16, CONTEXT - num_prompt_tokens),
    check_length=check_length,
    default_repetition_penalty=1.25,
)


def parsed(**options: Any) -> GenerationRequest:
    """With options as parameters."""
    return parse_request(fields({"text_input": [b"abc"]}, options), READER)


def params(**options: Any) -> SamplingParams:
    return parsed(**options).rows[0].params


def test_a_bare_text_is_continued_greedily_with_the_models_defaults() -> None:
    request = parsed()
    (row,) = request.rows
    assert (row.text, row.prompt_token_ids, row.exclude_input) == ("abc", [97, 98, 99], True)
    assert row.params == SamplingParams(max_tokens=16, repetition_penalty=1.25)
    assert row.params.is_greedy
    assert request.outputs == frozenset()


EVERYTHING: dict[str, Any] = {
    "max_tokens": 9,
    "min_tokens": 2,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.25,
    "repetition_penalty": 1.5,
    "seed": 2**64 - 1,
    "stop_words": "x",
    "exclude_input_in_output": False,
    "return_finish_reason": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
    "stream": False,
}


@pytest.mark.parametrize("as_tensors", [False, True])
def test_every_option_is_read(as_tensors: bool) -> None:
    text: dict[str, list[Any]] = {"text_input": [b"abc"]}
    tensors = {name: [v.encode() if v == "x" else v] for name, v in EVERYTHING.items()}
    given = fields({**text, **tensors}, {}) if as_tensors else fields(text, EVERYTHING)
    request = parse_request(given, READER)
    assert request.rows[0].params == SamplingParams(
        max_tokens=9,
        min_tokens=2,
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        repetition_penalty=1.5,
        seed=2**64 - 1,
        stop_words=("x",),
    )
    assert not request.rows[0].exclude_input
    assert request.outputs == {"finish_reason", "num_input_tokens", "num_output_tokens"}


def test_each_row_of_a_batch_has_its_own_options() -> None:
    tensors: dict[str, list[Any]] = {
        "text_input": [[b"a"], [b"bc"]],
        "max_tokens": [[4], [5]],
        "top_k": [[0], [2]],
    }
    first, second = parse_request(fields(tensors, {"seed": 8}, batched=True), READER).rows
    assert (first.params.max_tokens, second.params.max_tokens) == (4, 5)
    assert (first.params.top_k, second.params.top_k) == (0, 2)
    assert (first.params.seed, second.params.seed) == (8, 8)
    assert second.prompt_token_ids == [98, 99]


@pytest.mark.parametrize(
    "options, temperature",
    [
        ({}, 0.0),
        ({"top_k": 1}, 0.0),
        ({"top_p": 0.0}, 0.0),  # off, as LlamaIndex sends it
        ({"top_p": 1.0}, 0.0),
        ({"top_k": 2}, 1.0),
        ({"top_p": 0.5}, 1.0),
        ({"seed": 0}, 1.0),
        ({"seed": 3, "temperature": 0.0}, 0.0),
        ({"top_k": 5, "temperature": 0.25}, 0.25),
    ],
)
def test_asking_for_sampling_in_any_way_samples(
    options: dict[str, Any], temperature: float
) -> None:
    assert params(**options).temperature == temperature
    assert params(**options).is_greedy == (temperature == 0)


@pytest.mark.parametrize("value", [-1, 0])
def test_top_k_is_off_at_0_and_minus_1(value: int) -> None:
    assert not params(top_k=value, temperature=1.0).filters


def test_min_tokens_above_the_default_length_extends_it() -> None:
    assert params(min_tokens=30).max_tokens == 30


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"max_tokens": 0}, "max_tokens: got 0, allowed: 1 or more"),
        ({"max_tokens": -5}, "max_tokens: got -5, allowed: 1 or more"),
        ({"max_tokens": BIG}, f"too long: 3 and {BIG}"),
        ({"min_tokens": 48}, "too long: 3 and 48"),
        ({"max_tokens": 1.5}, "max_tokens: got 1.5, allowed: an integer"),
        ({"max_tokens": "9"}, "max_tokens: got a text, allowed: an integer"),
        ({"min_tokens": -1, "max_tokens": 4}, "min_tokens: got -1, allowed: 0 to max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens: got 5, allowed: 0 to max_tokens (4)"),
        (
            {"temperature": -0.5},
            "temperature: got -0.5, allowed: 0 (greedy) or any finite number above it",
        ),
        (
            {"temperature": float("nan")},
            "temperature: got nan, allowed: 0 (greedy) or any finite number above it",
        ),
        (
            {"temperature": float("inf")},
            "temperature: got inf, allowed: 0 (greedy) or any finite number above it",
        ),
        ({"top_k": -2}, "top_k: got -2, allowed: 0 or -1 (off), or 1 and more"),
        ({"top_p": 1.5}, "top_p: got 1.5, allowed: 0 (off) to 1"),
        ({"top_p": -0.5}, "top_p: got -0.5, allowed: 0 (off) to 1"),
        ({"top_p": float("nan")}, "top_p: got nan, allowed: 0 (off) to 1"),
        (
            {"repetition_penalty": 0},
            "repetition_penalty: got 0.0, allowed: a finite number above 0 (1 is off)",
        ),
        (
            {"repetition_penalty": float("inf")},
            "repetition_penalty: got inf, allowed: a finite number above 0 (1 is off)",
        ),
        ({"seed": -1}, f"seed: got -1, allowed: 0 to {MAX_SEED}"),
        ({"seed": 2**64}, f"seed: got {2**64}, allowed: 0 to {MAX_SEED}"),
        ({"return_finish_reason": 1}, "return_finish_reason: got 1, allowed: true or false"),
    ],
    ids=str,
)
def test_a_value_out_of_range_names_field_value_and_range(
    options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(RequestError) as raised:
        parsed(**options)
    assert str(raised.value) == expected
    assert raised.value.status == "INVALID_ARG"


def test_without_min_tokens_no_range_shows_a_made_up_max_tokens() -> None:
    with pytest.raises(RequestError) as raised:
        parsed(min_tokens=-1)
    assert str(raised.value) == "min_tokens: got -1, allowed: 0 to max_tokens"
    with pytest.raises(RequestError) as raised:
        parsed(min_tokens=2**63 - 1)
    assert str(raised.value) == f"too long: 3 and {2**63 - 1}"


def test_streaming_is_refused_as_unsupported() -> None:
    with pytest.raises(UnsupportedError) as raised:
        parsed(stream=True)
    assert str(raised.value) == "stream: got true, this model answers once; allowed: false"
    assert raised.value.status == "UNSUPPORTED"


def test_a_bad_number_is_found_before_a_prompt_is_tokenised() -> None:
    def never(text: str) -> list[int]:
        raise AssertionError("tokenised")

    reader = PromptReader(never, lambda _: 1, check_length)
    with pytest.raises(RequestError, match=r"^top_p"):
        parse_request(fields({"text_input": [b"abc"]}, {"top_p": 7}), reader)


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(
        RequestError, match=r"^temprature: unknown parameter, did you mean temperat"
    ):
        parsed(temprature=1.0)

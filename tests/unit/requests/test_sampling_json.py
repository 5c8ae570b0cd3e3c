"""``sampling_parameters`` as clients of Triton's vLLM backend send them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_triton.runtime.errors import RequestError
from hf_triton.text_generation.request.sampling_json import read_sampling_parameters
from hf_triton.text_generation.sequence.request_options import OPTIONS
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from tests.support.request_fields import fields, parse_request
from tests.unit.requests.test_request import OWN_NAMES, READER

SECRET = "a prompt that no log may show, and a very long one at that"


def params(options: dict[str, Any], **tensors: list[Any]) -> SamplingParams:
    given = {
        "text_input": [b"abc"],
        "sampling_parameters": [json.dumps(options).encode()],
        **tensors,
    }
    return parse_request(fields(given, {}), READER).rows[0].params


def error_of(text: str) -> str:
    given: dict[str, list[Any]] = {"text_input": [b"abc"], "sampling_parameters": [text.encode()]}
    with pytest.raises(RequestError) as raised:
        parse_request(fields(given, {}), READER)
    assert raised.value.status == "INVALID_ARG"
    message = str(raised.value)
    assert SECRET not in message
    assert len(message) < 600
    return message


def test_every_option_is_read_under_vllms_names() -> None:
    same = {**OWN_NAMES, "top_k": -1}
    stops = {"stop": ["x", ""], "stop_token_ids": [5, 6], "include_stop_str_in_output": True}
    others = {"bad_words": ["b"], "logprobs": 3, "logit_bias": {"12": -1, "3": 2.5}}
    assert params({"n": 1, "best_of": 1, **same, **stops, **others}) == SamplingParams(
        **same,
        stop_words=("x",),
        stop_token_ids=(5, 6),
        include_stop_word=True,
        bad_token_ids=((98,), (66,)),
        num_logprobs=3,
        logit_bias=((3, 2.5), (12, -1.0)),
    )


def test_numbers_and_booleans_may_come_as_texts() -> None:
    """genai-perf sends {"max_tokens": "100", "min_tokens": "100"}."""
    as_texts = {
        "max_tokens": "20",
        "min_tokens": "20",
        "temperature": "0.5",
        "top_k": " -1 ",
        "seed": "18446744073709551615",
        "ignore_eos": "true",
        "stop_token_ids": ["4"],
        "logit_bias": {"4": "1e1"},
        "use_beam_search": "False",
    }
    as_numbers = {
        "max_tokens": 20,
        "min_tokens": 20.0,
        "temperature": 0.5,
        "top_k": -1,
        "seed": 2**64 - 1,
        "ignore_eos": True,
        "stop_token_ids": [4],
        "logit_bias": {"4": 10},
    }
    assert params(as_texts) == params(as_numbers)


def test_what_the_json_says_wins_over_tensors_and_null_says_nothing() -> None:
    given: dict[str, Any] = {"max_tokens": [5], "stop_words": [b"t"], "seed": [3]}
    read = params({"max_tokens": 6, "stop": "j", "seed": None}, **given)
    assert (read.max_tokens, read.stop_words, read.seed) == (6, ("j",), 3)
    assert params({}, **given).stop_words == ("t",)
    assert params({"seed": 4}, seed=[1], random_seed=[1]).seed == 4


@pytest.mark.parametrize(
    "options",
    [
        {"prompt_logprobs": None, "allowed_token_ids": None, "logits_processors": None},
        {"detokenize": True, "spaces_between_special_tokens": True},
        {"use_beam_search": False, "beam_width": 1, "length_penalty": 1.0, "early_stopping": False},
        {
            "best_of": None,
            "logprobs": False,
            "top_logprobs": 0,
            "seed": -1,
            "guided_decoding": None,
        },
        {"stop": None, "stop_token_ids": None, "logit_bias": None, "n": None, "bad_words": []},
    ],
    ids=str,
)
def test_names_of_vllms_with_a_value_that_changes_nothing_are_accepted(
    options: dict[str, Any],
) -> None:
    assert params(options) == params({})


NOT_READ = [
    ("[]", "got a list, allowed: a JSON object"),
    ('{"n": 1,\n "x"}', "not valid JSON at line 2, column 5: Expecting ':' delimiter"),
    ('{"n": 1, "n": 2}', "n is given twice"),
    ('{"max_tokens": ' + "9" * 5000 + "}", "not valid JSON: a number has too many digits"),
    ('{"stop": ' + "[" * 100_000, "not valid JSON: nested too deeply"),
    ('{"stop": "\\ud800"}', "not valid Unicode: half of a surrogate pair"),
    ('{"temprature": 1}', "temprature: unknown name, did you mean temperature? allowed: "),
    ('{"stop_words": "x"}', "stop_words: unknown name, did you mean stop?"),
    (json.dumps({SECRET: 1}), "a name of 58 characters: unknown name; allowed: "),
    (json.dumps({"max_tokens": SECRET}), "max_tokens: got a text, allowed: an integer"),
    ('{"top_k": 1e400}', "top_k: got inf, allowed: an integer"),
    ('{"max_tokens": NaN}', "max_tokens: got nan, allowed: an integer"),
    ('{"temperature": ' + "9" * 400 + "}", "temperature: got an integer too large for a number"),
    ('{"ignore_eos": 1}', "ignore_eos: got 1, allowed: true or false"),
    ('{"stop": [1]}', "stop: got a list, allowed: a text or a list of texts"),
    ('{"stop_token_ids": 5}', "stop_token_ids: got 5, allowed: a list of integers"),
    (json.dumps({"logit_bias": {SECRET: 1}}), "logit_bias: got a text, allowed: an integer"),
    ('{"use_beam_search": true}', "use_beam_search: got true, allowed: false (nothing else)"),
    (
        '{"allowed_token_ids": []}',
        "allowed_token_ids: got an empty list, allowed: one token or more",
    ),
    (json.dumps({"guided_decoding": SECRET}), "guided_decoding: got a text, allowed: an object"),
    ('{"top_logprobs": false}', "top_logprobs: got false, allowed: 0 (nothing else)"),
]


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            '{"max_tokens": -' + "9" * 400 + "}",
            "max_tokens: got an integer of more than 30 digits, allowed: 1 or more",
        ),
        ('{"stop_token_ids": [1000]}', "stop_token_ids: got token 1000, allowed: 0 to 999"),
        ('{"stop_token_ids": [-1]}', "stop_token_ids: got -1, allowed: 0 and more"),
        ('{"logit_bias": {"1000": 1}}', "logit_bias: got token 1000, allowed: 0 to 999"),
        ('{"logit_bias": {"-1": 1}}', "logit_bias: got token -1, allowed: 0 and more"),
        ('{"logit_bias": {"5": 101}}', "logit_bias: got 101.0, allowed: -100 to 100"),
        ('{"logit_bias": {"5": "nan"}}', "logit_bias: got nan, allowed: -100 to 100"),
        ('{"best_of": 4, "n": 2}', "best_of: got 4, allowed: 1 or n (2)"),
        *((text, f"sampling_parameters: {said}") for text, said in NOT_READ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_wrong_is_named_without_quoting_texts(text: str, expected: str) -> None:
    assert error_of(text).startswith(expected)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
NAMES = st.sampled_from([option.called or name for name, option in OPTIONS.items()] + ["x"])


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(NAMES, VALUES, max_size=3).map(lambda given: json.dumps(given).encode())
    | st.binary(max_size=30)
)
def test_any_bytes_are_an_answer_or_a_short_request_error(text: bytes) -> None:
    said = ""
    try:
        parse_request(fields({"text_input": [b"abc"], "sampling_parameters": [text]}, {}), READER)
    except RequestError as error:
        said = str(error)
    assert len(said) < 600


@pytest.mark.parametrize(
    "given, both",
    [
        ({"guided_json": {}, "json_schema": {}}, "guided_json and json_schema"),
        ({"structured_outputs": {"json": {}}, "json_schema": {}}, "structured_outputs and json_"),
        ({"structured_outputs": {"json": {}, "json_object": True}}, "json and json_object"),
    ],
)
def test_two_names_of_one_option_are_refused_rather_than_one_forgotten(
    given: dict[str, Any], both: str
) -> None:
    with pytest.raises(RequestError, match=f"^sampling_parameters: .*{both}.*: both given"):
        read_sampling_parameters(json.dumps(given))
    once = {"guided_json": {}, "json_schema": None, "structured_outputs": {"regex": None}}
    assert read_sampling_parameters(json.dumps(once)) == {"json_schema": "{}"}

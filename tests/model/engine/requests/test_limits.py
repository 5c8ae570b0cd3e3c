"""A request's lists are bounded before anything is tokenised."""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import read_json
from hf_triton.text_generation.request.chat import ChatTemplate
from hf_triton.text_generation.request.parsing import (
    check_logprobs,
    check_request,
    most_with_logprobs,
)
from hf_triton.text_generation.sampling.logits_processors import BadWords
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from tests.support.driving import NumberTokenizer
from tests.support.request_fields import fields
from tests.unit.requests.test_request import READER


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("tokenised")


UNREAD = replace(READER, tokenize=never, tokenize_word=never, vocab_size=10**6)


@pytest.mark.threat("long-lists")
@pytest.mark.parametrize(
    "name, value, said",
    [
        ("bad_words", ["a"] * 1001, "bad_words: got 1001 texts, allowed: at most 1000"),
        ("bad_words", ["a" * 257], "bad_words: got a text of 257 bytes, allowed: at most 256 each"),
        (
            "bad_words",
            ["\N{EURO SIGN}" * 85] * 300,
            "bad_words: got texts of 76500 bytes, allowed: at most 65536 together",
        ),
        ("stop", ["a"] * 129, "stop_words: got 129 texts, allowed: at most 128"),
        ("stop", "a" * 1000, "stop_words: got a text of 1000 bytes, allowed: at most 256 each"),
        (
            "stop_token_ids",
            list(range(1001)),
            "stop_token_ids: got 1001 tokens, allowed: at most 1000",
        ),
        (
            "logit_bias",
            {str(token): 1 for token in range(10_001)},
            "logit_bias: got 10001 tokens, allowed: at most 10000",
        ),
        (
            "stop",
            ["a" * 2**20],
            "sampling_parameters: got 1048590 characters, allowed: at most 1048576",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_too_long_a_list_is_refused_before_anything_is_tokenised(
    name: str, value: Any, said: str
) -> None:
    given = {"text_input": [b"abc"], "sampling_parameters": [json.dumps({name: value}).encode()]}
    with pytest.raises(RequestError) as raised:
        check_request(fields(given, {}), UNREAD)
    assert str(raised.value) == said


@pytest.mark.threat("long-lists")
@pytest.mark.parametrize("name", ["stop_words", "bad_words"])
def test_tensors_are_bounded_alike(name: str) -> None:
    given = {"text_input": [b"abc"], name: [b"a" * 10_000_000]}
    with pytest.raises(RequestError, match=f"^{name}: got a text of 10000000 bytes, allowed: at"):
        check_request(fields(given, {}), UNREAD)


@pytest.mark.threat("empty-texts")
@pytest.mark.parametrize(
    "name, num, said",
    [
        ("stop_words", 70_000, "stop_words: got 70000 elements, allowed: at most 65536"),
        ("choice", 70_000, "choice: got 70000 elements, allowed: at most 65536"),
        ("input_ids", 2**20 + 1, "input_ids: got 1048577 elements, allowed: at most 1048576"),
    ],
)
def test_tensors_of_too_many_elements_are_not_looked_at(name: str, num: int, said: str) -> None:
    values: Any = [7] * num if name == "input_ids" else [b""] * num
    given = {name: values} if name == "input_ids" else {"text_input": [b"abc"], name: values}
    with pytest.raises(RequestError) as raised:
        check_request(fields(given, {}), UNREAD)
    assert str(raised.value) == said


@pytest.mark.threat("long-prompts")
def test_more_messages_than_the_context_has_tokens_are_not_rendered() -> None:
    reader = replace(READER, max_model_len=2, chat=ChatTemplate(None))  # which refuses each
    messages = json.dumps([{"role": "user", "content": ""}] * 3).encode()
    checked = check_request(fields({"messages": [messages]}, {}), reader)
    with pytest.raises(RequestError, match="messages: got 3, allowed: at most 2, as many as this"):
        checked.tokenised()


@pytest.mark.threat("endless-chats")
def test_tools_that_can_not_fit_are_not_rendered() -> None:
    reader = replace(READER, max_model_len=2, chat=ChatTemplate(None))  # which refuses each
    given = {"messages": [b'[{"role": "user", "content": ""}]'], "tools": [b"[%70000d]" % 1]}
    checked = check_request(fields(given, {}), reader)
    with pytest.raises(RequestError, match="tools: got 70002 characters, allowed: at most 65536"):
        checked.tokenised()


def test_an_error_shows_little_of_a_long_name() -> None:
    with pytest.raises(RequestError, match=r"^y{64}: unknown parameter; allowed: ") as raised:
        check_request(fields({"text_input": [b"a"]}, {"y" * 10_000_000: 1}), UNREAD)
    assert len(str(raised.value)) < 2000


def test_the_longest_lists_are_taken() -> None:
    most = {
        "stop": [f"{n:0256}" for n in range(128)],
        "bad_words": [f"{n:065}" for n in range(1000)],
        "stop_token_ids": list(range(1000)),
        "logit_bias": {str(token): 1 for token in range(10_000)},
    }
    given = {"text_input": [b"abc"], "sampling_parameters": [json.dumps(most).encode()]}
    checked = check_request(fields(given, {}), UNREAD)
    assert checked.num_characters > 4 * 65_000  # each word is tokenised four times


@pytest.mark.threat("long-prompts")
def test_json_of_a_chat_is_bounded_and_parsed_without_garbage_collections() -> None:
    with pytest.raises(RequestError, match=r"^messages: got 16777217 characters, allowed: at most"):
        read_json("messages", "[" * (2**24 + 1))
    before = gc.get_stats()[2]["collections"]
    read_json("messages", "[" + "[]," * 300_000 + "[]]")
    assert gc.get_stats()[2]["collections"] == before
    assert gc.isenabled()


def fastest_s(call: Callable[[], object]) -> float:
    found = []
    for _ in range(20):
        began_s = time.thread_time()
        call()
        found.append(time.thread_time() - began_s)
    return min(found)


@pytest.mark.threat("long-lists")
def test_the_most_stop_words_cost_each_token_little() -> None:
    tokenizer: Any = NumberTokenizer()
    words = [f"{'9 ' * 126}{n:03}" for n in range(128)]
    detokenizer = Detokenizer(tokenizer, [], words)
    detokenizer.add([9] * 5000 + [8])
    assert fastest_s(lambda: detokenizer.release(final=False)) < 0.001


@pytest.mark.threat("long-lists")
def test_the_most_bad_words_cost_each_token_little() -> None:
    words = [(*range(n % 250), *[7] * 30, 8, n) for n in range(4000)]
    bad_words = BadWords(words, (), 5000)
    sequence: Any = type("Written", (), {"token_ids": [7] * 1000 + [8]})
    assert fastest_s(lambda: bad_words.completions(sequence)) < 0.003


@pytest.mark.threat("many-logprobs")
@pytest.mark.parametrize("n, is_refused", [(195, False), (200, True)])
def test_log_probabilities_of_all_sequences_are_bounded_together(n: int, is_refused: bool) -> None:
    params = SamplingParams(max_tokens=1000, num_logprobs=20)
    first = SamplingParams(max_tokens=1000, num_logprobs=20, num_prompt_logprobs=5)
    sequences: Any = [SimpleNamespace(params=params, num_prompt_tokens=100) for _ in range(n - 1)]
    sequences.append(SimpleNamespace(params=first, num_prompt_tokens=100))
    said = f"^logprobs: got {n * 21_000 + 600} for n x max_tokens .* at most 4194304 in one request"
    with pytest.raises(RequestError, match=said) if is_refused else contextlib.nullcontext():
        check_logprobs(sequences)


@pytest.mark.threat("unlimited-answers")
def test_a_clamped_output_stays_within_the_bound_of_log_probabilities() -> None:
    params = SamplingParams(max_tokens=2**63, num_logprobs=20, num_prompt_logprobs=3)
    fits = replace(params, max_tokens=most_with_logprobs(params, 100_000, n=7))
    assert fits.max_tokens > 20_000
    first: Any = SimpleNamespace(params=fits, num_prompt_tokens=100_000)
    other: Any = SimpleNamespace(
        params=replace(fits, num_prompt_logprobs=None), num_prompt_tokens=100_000
    )
    check_logprobs([first, *[other] * 6])

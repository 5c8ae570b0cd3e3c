"""A request becomes generations, or an error that names the field, the value and the range."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from hf_triton.runtime.errors import RequestError
from hf_triton.text_generation.request.chat import ChatTemplate
from hf_triton.text_generation.request.chat_formats import ChatFormat
from hf_triton.text_generation.request.parsing import Generation, GenerationRequest, PromptReader
from hf_triton.text_generation.request.sampling_json import FIELD
from hf_triton.text_generation.sequence.request_options import OPTIONS
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.structured.constraint import Constraint, Reasoning
from tests.support.request_fields import fields, parse_request
from tests.unit.requests import options_page

CONTEXT = 50
BIG = 2**31 - 1


def check_length(num_prompt_tokens: int, max_tokens: int) -> None:
    if num_prompt_tokens + max_tokens > CONTEXT:
        raise RequestError(f"too long: {num_prompt_tokens} and {max_tokens}")


def tokenize(
    text: str, *, add_special_tokens: bool = True, num_kept: int | None = None
) -> list[int]:
    return [ord(character) for character in text if add_special_tokens or character != "^"]


class Chat(ChatTemplate):
    def __init__(self) -> None:
        super().__init__(None)

    def render(self, messages: list[Any], tools: list[Any] | None, kwargs: dict[str, Any]) -> str:
        return f"^{len(messages)}{len(tools or ())}{len(kwargs)}"


def output_length(num_prompt_tokens: int, asked: int | None, *, clamps: bool) -> int:
    left = max(1, CONTEXT - num_prompt_tokens)
    if asked is None:
        return left if clamps else min(16, left)
    return min(asked, left) if clamps else asked


READER = PromptReader(
    tokenize=tokenize,
    output_length=output_length,
    check_length=check_length,
    tokenize_word=lambda word: [tuple(map(ord, word)), tuple(map(ord, word.upper()))],
    chat=Chat(),
    default_repetition_penalty=1.25,
    vocab_size=1000,
)


def parsed(reader: PromptReader = READER, **options: Any) -> GenerationRequest:
    """With options as parameters."""
    return parse_request(fields({"text_input": [b"abc"]}, options), reader)


def error_of(tensors: dict[str, list[Any]], parameters: Any = None, **reading: Any) -> str:
    with pytest.raises(RequestError) as raised:
        parse_request(fields(tensors, parameters or {}, **reading), READER)
    assert raised.value.status == "INVALID_ARG"
    return str(raised.value)


def params(**options: Any) -> SamplingParams:
    return parsed(**options).rows[0].params


def test_a_bare_text_is_continued_greedily_with_the_models_defaults() -> None:
    request = parsed()
    (row,) = request.rows
    assert (row.prompt.text, row.prompt.token_ids) == ("abc", [97, 98, 99])
    assert row.params == SamplingParams(max_tokens=16, repetition_penalty=1.25)
    assert row.params.is_greedy
    expected = {"n": 1, "timeout_ms": None, "on_timeout": "partial"}
    assert {**expected, "exclude_input_in_output": True}.items() <= row.options.items()
    assert request.outputs == {"text_output"}
    assert not request.stream


def test_the_format_of_a_chats_answer_comes_to_whoever_asks() -> None:
    marks = {"<tool_call>": 1, "<think>": 2, "</think>": 3, "<other>": 4}
    chat_format = ChatFormat("json", "think")
    chat = Chat()
    chat.format, chat.added_tokens = chat_format, marks
    reader = replace(READER, chat=chat)
    tensors = {"messages": ["[{}]"], "tools": ["[{}]"]}
    options = {"return_chat_format": True, "regex": "a"}
    [row] = parse_request(fields(tensors, options), reader).rows
    assert row.chat_format == chat_format
    assert row.kept_token_ids == {1, 2, 3}
    assert row.params.constraint is not None
    reasoning = Reasoning("<think>", "</think>", False, (("<think>", 2), ("</think>", 3)))
    assert row.params.constraint.reasoning == reasoning
    [row] = parse_request(fields(tensors, {"regex": "a"}), reader).rows
    assert (row.chat_format, row.kept_token_ids) == (None, frozenset())
    assert row.params.constraint == Constraint("regex", ("a",))
    tensors.pop("tools")
    [row] = parse_request(fields(tensors, options), reader).rows
    assert row.kept_token_ids == {2, 3}


# Options that SamplingParams has under their names.
OWN_NAMES: dict[str, Any] = {
    "max_tokens": 9,
    "min_tokens": 2,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.25,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "frequency_penalty": -0.5,
    "presence_penalty": 0.75,
    "seed": 2**64 - 1,
    "ignore_eos": True,
}
EVERYTHING: dict[str, Any] = {
    **OWN_NAMES,
    "random_seed": 2**64 - 1,
    "stop_words": "x",
    "bad_words": "b",
    "include_stop_str_in_output": True,
    "logprobs": 2,
    "n": 3,
    "beam_width": 1,
    "length_penalty": 1.0,
    "timeout_ms": 250,
    "on_timeout": "error",
    "exclude_input_in_output": False,
    "return_finish_reason": True,
    "return_cumulative_logprob": True,
    "return_logprobs": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
    "stream": True,
}
PARAMETERS_ONLY = ("min_p", "include_stop_str_in_output", "ignore_eos", "logprobs")


@pytest.mark.parametrize("as_tensors", [False, True])
def test_every_option_is_read(as_tensors: bool) -> None:
    text: dict[str, list[Any]] = {"text_input": [b"abc"]}
    only = {name: EVERYTHING[name] for name in PARAMETERS_ONLY}
    tensors = {
        name: [value.encode() if isinstance(value, str) else value]
        for name, value in EVERYTHING.items()
        if name not in only
    }
    given = fields({**text, **tensors}, only) if as_tensors else fields(text, EVERYTHING)
    request = parse_request(given, READER)
    assert request.rows[0].params == SamplingParams(
        **OWN_NAMES,
        stop_words=("x",),
        bad_token_ids=((98,), (66,)),
        include_stop_word=True,
        num_logprobs=2,
    )
    row = request.rows[0]
    expected = {"n": 3, "timeout_ms": 250, "on_timeout": "error"}
    assert {**expected, "exclude_input_in_output": False}.items() <= row.options.items()
    assert request.stream
    assert request.outputs == {
        *("text_output", "finish_reason", "cumulative_logprob", "logprobs"),
        *("num_input_tokens", "num_output_tokens"),
    }


def test_empty_words_are_ignored_as_litellm_sends_them() -> None:
    given = {"text_input": [b"abc"], "bad_words": [b""], "stop_words": [b"", b"b"]}
    row = parse_request(fields(given, {}), READER).rows[0]
    assert (row.params.bad_token_ids, row.params.stop_words) == ((), ("b",))


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
    assert second.prompt.token_ids == [98, 99]


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
        ({"random_seed": 0}, 1.0),
        ({"min_p": 0.1}, 1.0),
        ({"n": 2}, 1.0),
        ({"n": 2, "temperature": 0.0}, 0.0),
        ({"seed": 3, "temperature": 0.0}, 0.0),
        ({"top_k": 5, "temperature": 0.25}, 0.25),
    ],
)
def test_asking_for_sampling_in_any_way_samples(
    options: dict[str, Any], temperature: float
) -> None:
    assert params(**options).temperature == temperature
    assert params(**options).is_greedy == (temperature == 0)


def test_min_tokens_above_the_default_length_extends_it() -> None:
    assert params(min_tokens=30).max_tokens == 30


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_length_penalty_of_beams_is_finite(value: float) -> None:
    with pytest.raises(RequestError, match=r"length_penalty: got .*, allowed: a finite number"):
        SamplingParams(max_tokens=1, num_beams=2, length_penalty=value)


def beyond(name: str) -> list[Any]:
    """Values just outside of an option's bounds, and what is no finite number."""
    low, high = OPTIONS[name].bounds or (0, 0)
    if OPTIONS[name].kind == "number":
        return [low - 0.5, high * 1.5, math.nan]
    return [low - 1, *([high + 1] if high < math.inf else [])]


RANGED = [
    name
    for name, option in OPTIONS.items()
    if option.bounds and option.kind in ("integer", "number")
]


@pytest.mark.parametrize("name, value", [(n, value) for n in RANGED for value in beyond(n)])
def test_a_value_out_of_its_range_names_option_value_and_range_at_each_door(
    name: str, value: Any
) -> None:
    said = f"{name}: got {value}, allowed: {OPTIONS[name].allowed}"
    if OPTIONS[name].is_parameter:
        assert error_of({"text_input": [b"abc"]}, {name: value}) == said
    if OPTIONS[name].in_json and (name, value) != ("seed", -1):  # vLLM's word for none
        sampling = json.dumps({OPTIONS[name].called or name: value})
        assert error_of({"text_input": [b"abc"]}, {FIELD: sampling}) == said


def test_the_page_has_the_table_of_options() -> None:
    page = options_page.PAGE.read_text(encoding="utf-8")
    assert options_page.with_table(page) == page


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"max_tokens": 0}, "max_tokens: got 0, allowed: 1 or more"),
        ({"max_tokens": BIG}, f"too long: 3 and {BIG}"),
        ({"max_tokens": "nine"}, "max_tokens: got a text, allowed: an integer"),
        ({"min_tokens": 48}, "too long: 3 and 48"),
        ({"min_tokens": -1}, "min_tokens: got -1, allowed: 0 to max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens: got 5, allowed: 0 to max_tokens (4)"),
        (
            {"repetition_penalty": 0},
            "repetition_penalty: got 0.0, allowed: a finite number above 0 (1 is off)",
        ),
        ({"return_finish_reason": 1}, "return_finish_reason: got 1, allowed: true or false"),
        ({"beam_width": 4}, "beam_width: got 4, allowed: 1 (no beam search)"),
        ({"length_penalty": 0.5}, "length_penalty: got 0.5, allowed: 1 (it only weighs beams)"),
        ({"timeout_ms": 0}, "timeout_ms: got 0, allowed: 1 and more"),
        ({"on_timeout": "stop"}, "on_timeout: got another text, allowed: partial or error"),
        (
            {"seed": 1, "random_seed": 2},
            "random_seed: got 2, allowed: the same as seed (1), or one of them",
        ),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens: got 0, allowed: 1 and more"),
    ],
    ids=str,
)
def test_what_an_option_can_not_be_is_named_with_what_it_can(
    options: dict[str, Any], expected: str
) -> None:
    assert error_of({"text_input": [b"abc"]}, options).startswith(expected)


def test_a_bad_number_in_any_row_is_found_before_a_prompt_is_tokenised() -> None:
    def tokenise(*_: Any, **__: Any) -> Any:
        raise AssertionError("tokenised")

    never: Any = tokenise
    reader = PromptReader(never, output_length, check_length, never, never)
    tensors: dict[str, list[Any]] = {"text_input": [[b"abc"]] * 2, "top_p": [[0.5], [7]]}
    with pytest.raises(RequestError, match=r"^top_p"):
        parse_request(fields(tensors, {"bad_words": "x"}, batched=True), reader)
    tensors = {"text_input": [[b"abc"]] * 2, "n": [[1], [2]]}
    with pytest.raises(RequestError) as raised:
        parse_request(fields(tensors, {}, batched=True), reader)
    assert str(raised.value) == "n: got 1 and 2 in one batch, allowed: the same in every row"


MESSAGES = json.dumps([{"role": "user", "content": "hi"}]).encode()


def chat(reader: PromptReader = READER, **tensors: bytes) -> Generation:
    given = {name: [value] for name, value in tensors.items()}
    return parse_request(fields(given, {}), reader).rows[0]


def test_a_chat_is_rendered_and_tokenised_without_special_tokens_of_its_own() -> None:
    row = chat(
        messages=MESSAGES, tools=b"[{}, {}]", chat_template_kwargs=b'{"a": 1, "b": 2, "c": 3}'
    )
    assert row.prompt.text == "^123"
    assert row.prompt.token_ids == [49, 50, 51]


def test_clients_may_send_an_empty_text_beside_messages_and_the_reverse() -> None:
    assert chat(messages=MESSAGES, text_input=b"").prompt.text == "^100"
    assert chat(messages=b"", text_input=b"abc", tools=b"").prompt.text == "abc"


def test_each_row_of_a_batch_is_a_chat_or_a_text() -> None:
    tensors: dict[str, list[Any]] = {
        "text_input": [[b"abc"], [b""]],
        "messages": [[b""], [MESSAGES]],
    }
    rows = parse_request(fields(tensors, {}, batched=True), READER).rows
    assert [row.prompt.text for row in rows] == ["abc", "^100"]


@pytest.mark.parametrize(
    "tensors, expected",
    [
        ({}, "text_input: missing, a text is required (or messages)"),
        ({"text_input": [b""]}, "text_input: empty, a text is required (or messages)"),
        (
            {"text_input": [b"a"], "messages": [MESSAGES]},
            "text_input and messages: both given, send one of them",
        ),
        (
            {"text_input": [b"a"], "tools": [b"[]"]},
            "tools: given without messages, which it needs",
        ),
        ({"messages": [b"{}"]}, "messages: got an object, allowed: a JSON list"),
        (
            {"messages": [b'[{"role": "user"']},
            "messages: not valid JSON at line 1, column 17: Expecting ',' delimiter",
        ),
        ({"messages": [MESSAGES], "tools": [b"3"]}, "tools: got 3, allowed: a JSON list"),
        (
            {"messages": [MESSAGES], "chat_template_kwargs": [b"[]"]},
            "chat_template_kwargs: got a list, allowed: a JSON object",
        ),
    ],
    ids=str,
)
def test_a_request_has_one_prompt_of_the_right_form(
    tensors: dict[str, list[Any]], expected: str
) -> None:
    assert error_of(tensors) == expected


def test_an_error_names_the_row_of_a_batch() -> None:
    tensors = {"text_input": [[b"a"], [b""]], "messages": [[b""], [b""]]}
    expected = "text_input: empty in row 1 of the batch, a text is required (or messages)"
    assert error_of(tensors, batched=True) == expected


def test_without_a_template_a_chat_is_refused() -> None:
    reader = PromptReader(tokenize, output_length, check_length, lambda word: [])
    with pytest.raises(RequestError, match=r"^messages: this model has no chat template; send tex"):
        chat(reader, messages=MESSAGES)


def test_log_probabilities_that_any_row_asks_for_are_computed_for_all() -> None:
    tensors: dict[str, list[Any]] = {
        "text_input": [[b"a"], [b"b"]],
        "return_cumulative_logprob": [[False], [True]],
    }
    request = parse_request(fields(tensors, {}, batched=True), READER)
    assert [row.params.num_logprobs for row in request.rows] == [0, 0]
    assert request.outputs == {"text_output", "cumulative_logprob"}
    assert parsed(return_logprobs=True).rows[0].params.num_logprobs == 0
    assert parsed().rows[0].params.num_logprobs is None
    assert parsed(logprobs=3).outputs == {"text_output", "logprobs"}


def timed(asked: int | None, default: int | None, ceiling: int | None) -> int | None:
    reader = replace(READER, default_timeout_ms=default, max_timeout_ms=ceiling)
    options = {} if asked is None else {"timeout_ms": asked}
    found: int | None = parsed(reader, **options).rows[0].options["timeout_ms"]
    return found


def test_a_request_has_its_own_time_the_default_one_or_the_ceiling() -> None:
    assert timed(None, None, None) is None
    assert timed(None, 500, None) == 500
    assert timed(None, 500, 900) == 500
    assert timed(None, None, 900) == 900
    assert timed(700, 500, 900) == 700
    assert timed(7000, 500, None) == 7000
    with pytest.raises(RequestError, match=r"^timeout_ms: got 901, allowed: 1 to 900 \(max_time"):
        timed(901, None, 900)


@pytest.mark.parametrize("shown, ids", [(False, (9, 7)), (True, (9,))])
def test_a_stop_word_that_is_a_special_token_ends_a_text_that_hides_it(
    shown: bool, ids: tuple[int, ...]
) -> None:
    reader = replace(READER, special_token_ids={"<end>": 7, "<pad>": 8})
    sampling = json.dumps({"stop": ["x", "<end>"], "stop_token_ids": [9]}).encode()
    given = {"text_input": [b"abc"], "sampling_parameters": [sampling]}
    (row,) = parse_request(fields(given, {"skip_special_tokens": not shown}), reader).rows
    assert row.params.stop_words == ("x", "<end>")
    assert row.params.stop_token_ids == ids


def test_a_seed_has_two_names_and_may_be_negative_as_torchs() -> None:
    assert params(seed=5, random_seed=5).seed == 5
    assert params(random_seed=6).seed == 6
    assert params(sampling_parameters='{"seed": -2}').seed == 2**64 - 2


def test_parameters_that_sampling_parameters_repeats_are_left_to_it() -> None:
    """NVIDIA's client of the vLLM backend sends both, its numbers as texts."""
    options = {"temperature": "0.5", "max_tokens": "7", "stop": "x"}
    given = {"text_input": [b"abc"], "sampling_parameters": [json.dumps(options).encode()]}
    (row,) = parse_request(fields(given, options), READER).rows
    assert (row.params.temperature, row.params.max_tokens) == (0.5, 7)
    assert row.params.stop_words == ("x",)


def test_a_parameters_number_may_be_a_text() -> None:
    request = parsed(temperature="0.5", max_tokens="7", stream="true")
    assert request.rows[0].params.temperature == 0.5
    assert request.rows[0].params.max_tokens == 7
    assert request.stream


WITH_ADAPTERS = replace(READER, adapters=("polite", "sql"))


@pytest.mark.parametrize(
    "given",
    [
        fields({"text_input": [b"abc"], "lora_name": [b"sql"]}, {}),
        fields({"text_input": [b"abc"]}, {"lora_name": "sql"}),
        fields({"text_input": [b"abc"]}, {"sampling_parameters": '{"lora_name": "sql"}'}),
    ],
    ids=["tensor", "parameter", "sampling_parameters"],
)
def test_a_row_names_its_adapter(given: Any) -> None:
    assert parse_request(given, WITH_ADAPTERS).rows[0].options["lora_name"] == "sql"
    assert parsed(WITH_ADAPTERS, lora_name="").rows[0].options["lora_name"] == ""


@pytest.mark.parametrize(
    "reader, name, expected",
    [
        (WITH_ADAPTERS, "spl", "lora_name: got spl, allowed: polite, sql"),
        (WITH_ADAPTERS, "a b", "lora_name: got a name of 3 characters, allowed: polite, sql"),
        (READER, "sql", "lora_name: got sql, allowed: none: this model has no adapters"),
    ],
)
def test_an_unknown_adapter_is_refused_with_the_known_ones(
    reader: PromptReader, name: str, expected: str
) -> None:
    with pytest.raises(RequestError) as raised:
        parsed(reader, lora_name=name)
    assert str(raised.value) == expected


def test_a_prompts_last_tokens_are_kept_where_it_is_to_be_shorter() -> None:
    tensors: dict[str, list[Any]] = {"text_input": [b"abcd"]}
    (row,) = parse_request(fields(tensors, {"truncate_prompt_tokens": 2}), READER).rows
    assert row.prompt.token_ids == tokenize("abcd")[-2:]
    (row,) = parse_request(fields(tensors, {"truncate_prompt_tokens": 9}), READER).rows
    assert (row.prompt.text, row.prompt.token_ids) == ("abcd", tokenize("abcd"))


@pytest.mark.parametrize("asked, kept", [({}, 9), ({"max_tokens": 4}, 6), ({"max_tokens": 99}, 9)])
def test_a_prompt_may_be_cut_to_what_the_context_holds(asked: dict[str, Any], kept: int) -> None:
    reader = replace(READER, max_model_len=10, check_length=lambda *_: None)
    tensors: dict[str, list[Any]] = {"text_input": [b"abcdefghijklmnop"]}
    given = fields(tensors, {"truncate_prompt_tokens": -1, **asked})
    (row,) = parse_request(given, reader).rows
    assert row.prompt.token_ids == tokenize("abcdefghijklmnop")[-kept:]


@pytest.mark.parametrize(
    "asked, got",
    [
        ({}, CONTEXT - 3),
        ({"max_tokens": 32_000}, CONTEXT - 3),
        ({"max_tokens": 7}, 7),
        ({"logprobs": 20, "n": 128}, CONTEXT - 3),
    ],
)
def test_more_than_fits_is_clamped_where_a_request_says_so(asked: dict[str, Any], got: int) -> None:
    def rows(text: bytes, **more: Any) -> list[Generation]:
        sampling = json.dumps({"clamp_max_tokens": True, **asked, **more})
        tensors: dict[str, list[Any]] = {"text_input": [text], FIELD: [sampling.encode()]}
        return parse_request(fields(tensors, {}), READER).rows

    assert rows(b"abc")[0].params.max_tokens == got
    with pytest.raises(RequestError, match=rf"^too long: {CONTEXT} and"):
        rows(b"a" * CONTEXT)
    if "max_tokens" not in asked:
        with pytest.raises(RequestError, match=r"^too long: 3 and 99"):
            rows(b"abc", min_tokens=99)


def test_a_priority_is_read() -> None:
    assert parsed(sampling_parameters='{"priority": 3}').rows[0].options["priority"] == 3


def test_token_ids_are_a_prompt_and_must_be_the_models() -> None:
    (row,) = parse_request(fields({"input_ids": [5, 999]}, {}), READER).rows
    assert (row.prompt.text, row.prompt.token_ids) == ("", [5, 999])
    for wrong in (1000, -1):
        with pytest.raises(
            RequestError, match=rf"^input_ids: got token {wrong}, allowed: 0 to 999"
        ):
            parse_request(fields({"input_ids": [5, wrong]}, {}), READER)
    with pytest.raises(RequestError, match=r"^text_input and input_ids: both given"):
        parse_request(fields({"text_input": [b"a"], "input_ids": [5]}, {}), READER)


def test_special_tokens_are_added_to_a_chat_where_it_asks() -> None:
    added: list[bool] = []

    def noting(
        text: str, *, add_special_tokens: bool = True, num_kept: int | None = None
    ) -> list[int]:
        added.append(add_special_tokens)
        return tokenize(text)

    reader = replace(READER, tokenize=noting)
    for name, prompt in (("text_input", b"a"), ("messages", MESSAGES)):
        for asked in ({}, {"add_special_tokens": False}, {"add_special_tokens": True}):
            parse_request(fields({name: [prompt]}, asked), reader)
    assert added == [True, False, True, False, False, True]


def test_all_inputs_at_once_are_told_what_perf_analyzer_is_to_send() -> None:
    names = ("text_input", "messages", "sampling_parameters", "json_schema", "regex", "choice")
    texts = {name: [b"I am going"] for name in names}
    with pytest.raises(RequestError, match=r"perf_analyzer .* --input-data FILE"):
        parse_request(fields(texts, {}), READER)

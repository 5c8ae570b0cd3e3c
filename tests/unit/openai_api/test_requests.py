"""OpenAI's fields become Triton's, or are refused; ``/tokenize`` and ``/detokenize`` too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.openai_api.conftest import Translator


def test_a_completion_becomes_one_row_with_openais_defaults(api: Translator) -> None:
    assert api.completion().status == 200
    assert api.triton.seen == [
        {
            "model": "echo_stream",
            "text_input": "a b c",
            "exclude_input_in_output": True,
            "stream": False,
            "sampling_parameters": {"temperature": 1, "max_tokens": 16},
        }
    ]
    assert api.triton.shapes == [[1]] * 4


def test_a_chat_is_passed_on_as_it_is_and_the_model_sets_its_length(api: Translator) -> None:
    messages = [{"role": "system", "content": "é"}, {"role": "user", "content": "a"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    kwargs = {"enable_thinking": False}
    reply = api.chat(
        messages=messages, tools=tools, tool_choice="auto", chat_template_kwargs=kwargs
    )
    assert reply.status == 200
    [seen] = api.triton.seen
    assert json.loads(seen["messages"]) == messages
    assert json.loads(seen["tools"]) == tools
    assert json.loads(seen["chat_template_kwargs"]) == kwargs
    assert seen["sampling_parameters"] == {"temperature": 1, "clamp_max_tokens": True}


def test_how_a_chat_ends_and_how_much_it_reasons_is_the_templates(api: Translator) -> None:
    last = {"role": "assistant", "content": "Well", "reasoning": "hm"}
    own = {"add_generation_prompt": False, "continue_final_message": True}
    assert api.chat(messages=[last], **own, reasoning_effort="low").status == 200
    [seen] = api.triton.seen
    assert json.loads(seen["chat_template_kwargs"]) == {**own, "reasoning_effort?": "low"}
    assert json.loads(seen["messages"]) == [{**last, "reasoning_content": "hm"}]


@pytest.mark.parametrize("model", ["batched", "whole"])
def test_shapes_and_model_follow_the_config(model: str, api: Translator) -> None:
    assert api.completion(model=model).status == 200
    assert api.triton.seen[0]["model"] == {"batched": "batched_stream", "whole": "whole"}[model]
    assert api.triton.shapes[0] == {"batched": [1, 1], "whole": [1]}[model]


def test_every_option_becomes_a_sampling_parameter(api: Translator) -> None:
    options: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "n": 2,
        "seed": 7,
        "top_k": 5,
        "max_tokens": 3,
        "min_tokens": 2,
        "stop": ["x", "y"],
        "bad_words": ["z"],
        "stop_token_ids": [1],
        "logit_bias": {"3": -100},
        "ignore_eos": True,
        "include_stop_str_in_output": True,
    }
    assert api.completion(**options, best_of=2, timeout_ms=900, logprobs=2).status == 200
    [seen] = api.triton.seen
    assert seen["sampling_parameters"] == {**options, "logprobs": 2}
    assert seen["timeout_ms"] == 900


# Fields that clients send by default, or that mean nothing here.
NO_DIFFERENCE: dict[str, Any] = {
    "user": "u",
    "metadata": {"a": "b"},
    "num_ctx": 8192,
    "parallel_tool_calls": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "echo": False,
    "use_beam_search": False,
    "early_stopping": False,
    "length_penalty": 1.0,
    "priority": 0,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "return_token_ids": False,
    "reasoning_effort": "medium",
    "logprobs": False,
    "top_logprobs": 0,
    **dict.fromkeys(("prompt_logprobs", "truncate_prompt_tokens", "allowed_token_ids")),
}


def test_other_servers_names_mean_the_same(api: Translator) -> None:
    assert api.chat(repeat_penalty=1.1, grammar='root ::= "a"').status == 200
    passed = api.triton.seen[0]["sampling_parameters"]
    assert (passed["repetition_penalty"], passed["guided_grammar"]) == (1.1, 'root ::= "a"')


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}},
        {"type": "json_schema", "value": {"name": "a", "schema": {"type": "integer"}}},
        {"type": "json_schema", "schema": {"type": "integer"}},
        {"type": "json_object", "schema": {"type": "integer"}},
        {"type": "json_object", "value": {"type": "integer"}},
        {"type": "json", "value": {"type": "integer"}},
    ],
    ids=str,
)
def test_a_schema_comes_in_every_servers_form(api: Translator, form: dict[str, Any]) -> None:
    assert api.chat(response_format=form).status == 200
    held = api.triton.seen[0]["sampling_parameters"]["json_schema"]
    assert json.loads(held) == {"type": "integer"}


def test_a_format_need_not_have_a_schema(api: Translator) -> None:
    for ask in (api.chat, api.completion):
        for kind, held in (("text", None), ("json_object", '{"type": "object"}')):
            assert ask(response_format={"type": kind}).status == 200
            assert api.triton.seen[-1]["sampling_parameters"].get("json_schema") == held


def test_who_asks_is_a_parameter_that_a_canary_can_be_sticky_by(api: Translator) -> None:
    for fields, expected in (
        ({"user": "ann"}, "ann"),
        ({"safety_identifier": "bob"}, "bob"),
        ({"user": ["ann"]}, None),
        ({"user": ""}, None),
    ):
        assert api.completion(**fields).status == 200
        assert api.triton.seen[-1].get("user") == expected


MESSAGES = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/completions", {"prompt": "a", "top_p": 0}),
        ("/v1/chat/completions", {**MESSAGES, "top_p": 0.0}),
        ("/v1/responses", {"input": "a", "top_p": 0}),
        ("/v1/messages", {**MESSAGES, "top_p": 0}),
        ("/generate", {"inputs": "a", "parameters": {"top_p": 0}}),
    ],
)
def test_a_nucleus_of_nothing_is_the_narrowest(path: str, body: Any, api: Translator) -> None:
    """And not off, as 0 is in Triton's own requests."""
    assert api.post(path, model="echo", **body).status == 200
    assert 0 < api.triton.seen[-1]["sampling_parameters"]["top_p"] < 1e-6


def test_token_ids_are_prompts(api: Translator) -> None:
    api.completion(prompt=[7, 8, 9])
    reply = api.completion(prompt=[[1, 2], "a b", [3, 4]], max_tokens=5)
    assert [choice["text"] for choice in reply.body["choices"]] == ["1 2", "a b", "3 4"]
    asked = [seen.get("input_ids", seen.get("text_input")) for seen in api.triton.seen]
    assert asked[0] == [7, 8, 9]
    assert sorted(map(str, asked[1:])) == ["[1, 2]", "[3, 4]", "a b"]


def test_what_makes_no_difference_changes_nothing(api: Translator) -> None:
    assert api.chat(**NO_DIFFERENCE).status == 200
    passed = {"skip_special_tokens": True, "priority": 0}
    sampling = {"temperature": 1, "clamp_max_tokens": True, **passed}
    assert api.triton.seen[0]["sampling_parameters"] == sampling
    nulls = dict.fromkeys(("stop", "n", "logprobs", "suffix", "seed", "stream", "timeout_ms"))
    assert api.completion(**nulls).status == 200
    assert api.triton.seen[1]["sampling_parameters"] == {"temperature": 1, "max_tokens": 16}


@pytest.mark.parametrize(
    "asked, passed",
    [
        ({"seed": -1}, {"seed": 2**64 - 1}),
        ({"min_tokens": 40}, {"min_tokens": 40, "max_tokens": 40}),
        ({"max_completion_tokens": 2, "max_tokens": 2}, {"max_tokens": 2}),
    ],
    ids=str,
)
def test_a_value_becomes_one_of_tritons(
    asked: dict[str, int], passed: dict[str, int], api: Translator
) -> None:
    path = api.chat if "max_completion_tokens" in asked else api.completion
    assert path(**asked).status == 200
    assert api.triton.seen[0]["sampling_parameters"].items() >= passed.items()


CHAT = [{"role": "user", "content": "a bcd"}]


def asked(api: Translator) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last question, and what was sent beside it."""
    seen = dict(api.triton.seen[-1])
    del seen["sampling_parameters"]
    return json.loads(seen.pop("tokenizer")), seen


@pytest.mark.parametrize("model", ["echo", "whole", "batched", "translator"])
def test_a_prompts_tokens_are_those_that_the_model_tells(model: str, api: Translator) -> None:
    reply = api.post("/tokenize", model=model, prompt="a bcd", add_special_tokens=False)
    told = {"count": 2, "max_model_len": 99, "tokens": [1, 3], "token_strs": None}
    assert (reply.status, reply.body) == (200, told)
    question, seen = asked(api)
    assert question == {"ask": "tokenize", "add_special_tokens": False}
    assert seen.pop("model").removesuffix("_stream") == model
    assert seen == {"text_input": "a bcd"}


def test_a_chats_tokens_are_those_of_its_template(api: Translator) -> None:
    body = {"add_generation_prompt": False, "return_token_strs": True}
    reply = api.post("/tokenize", model="echo", messages=CHAT, **body)
    assert (reply.status, reply.body["count"]) == (200, 2)
    question, seen = asked(api)
    assert question == {"ask": "tokenize", "return_token_strs": True}
    assert json.loads(seen["messages"]) == CHAT
    assert json.loads(seen["chat_template_kwargs"]) == {"add_generation_prompt": False}


def test_tokens_are_sent_as_they_are(api: Translator) -> None:
    assert api.post("/detokenize", model="echo", tokens=[5, 6]).body == {"prompt": "[5, 6]"}
    assert asked(api)[0] == {"ask": "detokenize"}


def test_without_a_name_it_is_the_only_model(api: Translator) -> None:
    for name in ("batched", "batched_stream", "translator", "whole"):
        del api.triton.models[name]
    assert api.post("/tokenize", prompt="a b").body["count"] == 2

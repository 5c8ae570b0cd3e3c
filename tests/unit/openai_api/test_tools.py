"""Tools of a chat: what reaches the model of them, and its calls in OpenAI's form.

The fake model repeats the last message, so a message is also what the model would have written.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.schema.tools import Chosen, Named, ToolChoice, Tools, read_tools
from hf_triton.ports.openai.tool_calls.answer_reader import FoundCalls
from hf_triton.text_generation.request.chat_formats import ChatFormat
from hf_triton.text_generation.structured.constraint import Constraint
from hf_triton.text_generation.structured.llguidance_grammars import grammar_text
from tests.unit.openai_api.conftest import Translator

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
WEATHER = '{"name": "weather", "arguments": {"city": "Pa} </tool_call> ris"}}'
NOW = '{"name": "now", "parameters": {}}'
BOTH = [("weather", '{"city": "Pa} </tool_call> ris"}'), ("now", "{}")]


@pytest.mark.threat("endless-tool-call")
@pytest.mark.parametrize(
    "family, text",
    [
        ("json", '{"name": "weather", "arguments": {"x": [' + "1, " * 100_000),
        ("json", "<tool_call>" + "a" * 300_000),
        ("pythonic", "[weather(x=" + "[" * 300_000),
    ],
)
def test_what_may_be_a_call_waits_for_the_end(family: str, text: str) -> None:
    tools = Tools(TOOLS, frozenset(["weather", "now"]), None, True)
    reading, began_s = FoundCalls(tools, ChatFormat(family).tool_form), time.process_time()
    for at in range(0, len(text), 3):
        assert not reading.read(text[at : at + 3], ends=False)[0]
    assert reading.read("", ends=True) == (text, [])
    assert time.process_time() - began_s < 3, "it is not looked at with each piece"


def ask(api: Translator, content: str, **options: Any) -> Any:
    messages = [{"role": "user", "content": content}]
    return api.chat(messages=messages, tools=TOOLS, **options)


@pytest.mark.parametrize("n", [1, 2])
def test_a_call_is_answered_as_one(api: Translator, n: int) -> None:
    body = ask(api, f"<tool_call>\n{WEATHER}\n</tool_call>", n=n).body
    assert len(body["choices"]) == n
    for choice in body["choices"]:
        assert choice["finish_reason"] == "tool_calls"
        message = choice["message"]
        assert message["content"] is None
        [call] = message["tool_calls"]
        assert len(call.pop("id")) == 9
        assert call == {"type": "function", "function": dict(zip(_KEYS, BOTH[0], strict=True))}


_KEYS = ("name", "arguments")


def test_a_stream_has_text_first_and_then_the_calls(api: Translator) -> None:
    content = f"I look. <tool_call>{WEATHER}</tool_call> <tool_call>{NOW}</tool_call>"
    *events, done = ask(api, content, stream=True).events
    assert done == "[DONE]"
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look. "
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    assert [part["index"] for part in parts] == [0, 1]
    assert [tuple(part["function"].values()) for part in parts] == BOTH
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_the_hidden_tokens_of_a_call_are_no_events(api: Translator) -> None:
    *events, _ = ask(api, f"[{WEATHER}, {NOW}]", tool_choice="required", stream=True).events
    choices = [choice for event in events for choice in event["choices"]]
    assert choices[0]["delta"]["role"] == "assistant"
    assert all(one["delta"] or one["finish_reason"] for one in choices)


def test_a_call_that_must_be_is_held_to_the_tools_schemas(api: Translator) -> None:
    ask(api, f"[{WEATHER}]", tool_choice="required")
    schema = json.loads(api.triton.seen[0]["sampling_parameters"]["json_schema"])
    assert schema["type"] == "array"
    names = [one["properties"]["name"]["const"] for one in schema["items"]["anyOf"]]
    assert names == ["weather", "now"]
    assert json.loads(api.triton.seen[0]["tools"]) == TOOLS

    ask(api, WEATHER, tool_choice="required", parallel_tool_calls=False)
    schema = json.loads(api.triton.seen[1]["sampling_parameters"]["json_schema"])
    assert len(schema["anyOf"]) == 2


def of_one(parameters: Any, name: str = "a b#%") -> Tools:
    """The one tool, of any name, which must be called."""
    function = {"name": name, "parameters": parameters}
    return must_call({"type": "function", "function": function})


def must_call(*tools: dict[str, Any], choice: ToolChoice = "required") -> Tools:
    """Tools one of which must be called."""
    found = read_tools(tools, choice)
    assert found is not None
    return found


@pytest.mark.parametrize("parameters", [{"$defs": {}}, {"type": ["object", "null"]}])
def test_arguments_are_an_object_whether_the_tool_says_so_or_not(parameters: Any) -> None:
    schema = json.loads(of_one(parameters).constraint()["json_schema"])["items"]["anyOf"][0]
    arguments = schema["properties"]["arguments"]
    assert arguments == {**parameters, "$id": "http://tool/0/arguments", "type": "object"}


def _reading(key: str, kind: str, **more: Any) -> dict[str, Any]:
    """A tool that reads a tree of such values."""
    tree = {"type": "object", "properties": {"v": {"type": kind}, "of": {"$ref": key}}}
    function = {"name": kind, "parameters": {**tree, **more}}
    return {"type": "function", "function": function}


@pytest.mark.parametrize(
    "key, names",
    [
        *(("#", {"$id": one}) for one in ("same", "http://a.b/c", "Output Format", 5)),
        ("same", {"$id": "same"}),
        ("#", {}),
    ],
    ids=str,
)
def test_tools_whose_schemas_have_one_name_are_told_apart(key: str, names: Any) -> None:
    tools = [_reading(key, kind, **names) for kind in ("integer", "string")]
    held = must_call(*tools)
    tokenizer = LLTokenizer("byte")
    grammar = grammar_text(Constraint("json_schema", (held.constraint()["json_schema"],)))
    for name, value, fits in (("integer", 1, True), ("integer", "x", False), ("string", "x", True)):
        text = json.dumps([{"name": name, "arguments": {"of": {"v": value}}}])
        matcher = LLMatcher(tokenizer, grammar)
        assert (matcher.validate_tokens(tokenizer.tokenize_str(text)) == len(text)) == fits, name


CLOSED = {**SCHEMA, "additionalProperties": False}


@pytest.mark.parametrize(
    "parameters, held",
    [
        (None, {"properties": {}, "additionalProperties": False}),
        (
            {"properties": {"a": SCHEMA}},
            {"properties": {"a": CLOSED}, "additionalProperties": False},
        ),
        ({"$defs": {"b": {"items": SCHEMA}}}, {"$defs": {"b": {"items": CLOSED}}}),
        ({"anyOf": [SCHEMA], "properties": {}}, {"anyOf": [CLOSED], "properties": {}}),
        *(
            (given, given)
            for given in ({**SCHEMA, "additionalProperties": {}}, {"allOf": [SCHEMA]})
        ),
    ],
)
def test_arguments_have_no_other_names_where_the_schema_says_nothing(
    parameters: Any, held: Any
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    tools = must_call(tool, choice=Chosen(Named("f")))
    assert json.loads(tools.constraint()["json_schema"]) == {"type": "object", **held}


def test_arguments_that_are_to_be_no_object_are_refused() -> None:
    tools = of_one({"type": "string"})
    with pytest.raises(ApiError, match=r"tools\[0\].function.parameters.type: got another type"):
        tools.constraint()


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_call_is_its_arguments(api: Translator, stream: bool) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    reply = ask(api, '{"city": "Par is"}', tool_choice=choice, stream=stream)
    held = {**SCHEMA, "additionalProperties": False}
    assert json.loads(api.triton.seen[0]["sampling_parameters"]["json_schema"]) == held
    if stream:
        choices = [choice for event in reply.events[:-1] for choice in event["choices"]]
        parts = [part for one in choices for part in one["delta"].get("tool_calls", ())]
        assert len(parts) > 1
        assert [part["function"].get("name") for part in parts if "id" in part] == ["weather"]
        arguments = "".join(part["function"]["arguments"] for part in parts)
        ended = choices[-1]
    else:
        [ended] = reply.body["choices"]
        [call] = ended["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"
        arguments = call["function"]["arguments"]
    assert arguments == '{"city": "Par is"}'
    assert ended["finish_reason"] == "stop"  # as OpenAI has it


def test_vllms_names_go_to_the_model_as_they_are(api: Translator) -> None:
    extra = {"guided_regex": "a+", "structured_outputs": {"choice": ["a"]}, "guided_json": SCHEMA}
    api.chat(**extra)
    asked = {"temperature": 1, "clamp_max_tokens": True, **extra}
    assert api.triton.seen[0]["sampling_parameters"] == asked


def test_a_call_that_must_be_leaves_no_text_to_a_response_format(api: Translator) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    api.chat(tools=TOOLS, tool_choice=named, response_format={"type": "json_object"})
    found = api.triton.seen[0]["sampling_parameters"]["json_schema"]
    assert json.loads(found)["required"] == ["city"]

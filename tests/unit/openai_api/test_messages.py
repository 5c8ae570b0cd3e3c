"""``/v1/messages``: what reaches the model, and the blocks, events and errors of Anthropic's API.

The fake model repeats the last message, so a message is also what the model would have written.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from hf_triton.ports.openai.routes import answers
from tests.unit.openai_api.conftest import Reply, Translator
from tests.unit.openai_api.test_responses import CALL, SCHEMA, events_of

USAGE = {
    "input_tokens": 6,
    "output_tokens": 3,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
}
TOOLS = [{"name": "weather", "description": "Looks.", "input_schema": SCHEMA}]

SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
FOUND = {"type": "tool_result", "tool_use_id": "c1", "content": []}


def ask(api: Translator, content: Any = "a b c", **body: Any) -> Reply:
    messages = [{"role": "user", "content": content}]
    return api.post(
        "/v1/messages", **{"model": "echo", "max_tokens": 50, "messages": messages, **body}
    )


def parsed(text: str) -> Any:
    return Reply(200, {}, text).body


def test_a_message(api: Translator) -> None:
    body = ask(api).body
    assert body.pop("id").startswith("msg_")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "echo",
        "content": [{"type": "text", "text": "a b c"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
    }
    assert ask(api, max_tokens=2).body["stop_reason"] == "max_tokens"


def test_a_stream_has_anthropics_events_in_order(api: Translator) -> None:
    start, *events = events_of(ask(api, stream=True))
    message = start["message"]
    assert (start["type"], message["content"]) == ("message_start", [])
    assert message["usage"]["input_tokens"] == 6
    assert events == [
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}}
            for t in ("a", " b", " c")
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": USAGE,
        },
        {"type": "message_stop"},
    ]


def test_the_end_of_the_context_is_told_apart_from_that_of_max_tokens(api: Translator) -> None:
    long = "a " * 120  # the fake's context has 99
    assert ask(api, long, max_tokens=32_000).body["stop_reason"] == "model_context_window_exceeded"
    assert ask(api, long, max_tokens=99).body["stop_reason"] == "max_tokens"
    assert ask(api, "!late", max_tokens=32_000).body["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_the_stop_sequence_is_told_and_not_in_the_text(api: Translator, stream: bool) -> None:
    """The fake does not stop by itself: its text ends with what the model would have left there."""
    reply = ask(api, "a b END!", stop_sequences=["x", "END!"], stream=stream)
    parameters = api.triton.seen[-1]["sampling_parameters"]
    assert parameters["stop"] == ["x", "END!"]
    assert parameters["include_stop_str_in_output"] is True
    if stream:
        events = events_of(reply)
        deltas = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
        assert "".join(deltas) == "a b "
        ended = events[-2]["delta"]
    else:
        ended = reply.body
        assert ended["content"] == [{"type": "text", "text": "a b "}]
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("stop_sequence", "END!")


def test_what_only_begins_like_a_stop_sequence_is_text(api: Translator) -> None:
    text = "an EN END en"
    events = events_of(ask(api, text, stop_sequences=["END!", "en d"], stream=True))
    deltas = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
    assert "".join(deltas) == text
    assert events[-2]["delta"]["stop_reason"] == "end_turn"


def test_text_and_calls_are_blocks_of_their_own(api: Translator) -> None:
    written = f"I look. {CALL}{CALL}"
    body = ask(api, written, tools=TOOLS).body
    assert body["stop_reason"] == "tool_use"
    text, *calls = body["content"]
    assert text == {"type": "text", "text": "I look. "}
    assert [(call["name"], call["input"]) for call in calls] == [("weather", {"city": "Rome"})] * 2
    events = events_of(ask(api, written, tools=TOOLS, stream=True))
    for index in (1, 2):
        own = [event for event in events if event.get("index") == index]
        assert own[0]["content_block"]["input"] == {}
        parts = [event["delta"]["partial_json"] for event in own[1:-1]]
        assert "".join(parts) == '{"city": "Rome"}'
        assert own[-1] == {"type": "content_block_stop", "index": index}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_reasoning_is_a_block_before_the_answer(api: Translator) -> None:
    reasons = {"chat_template_kwargs": {"chat_format": {"reasoning": "think"}}}
    written = "<think>Let me see </think> It rains"
    assert ask(api, written, **reasons).body["content"] == [
        {"type": "thinking", "thinking": "Let me see", "signature": ""},
        {"type": "text", "text": "It rains"},
    ]
    events = events_of(ask(api, written, **reasons, stream=True))
    own = [event for event in events if event.get("index") == 0]
    assert own[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    kinds = [event["delta"]["type"] for event in own[1:-1]]
    assert kinds == [*["thinking_delta"] * (len(kinds) - 1), "signature_delta"]
    assert "".join(event["delta"].get("thinking", "") for event in own[1:-1]) == "Let me see"
    assert own[-1]["type"] == "content_block_stop"


@pytest.mark.parametrize(
    "body, effort",
    [
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, "none"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "medium"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, None),
        ({"output_config": {"effort": "max", "task_budget": {"total": 9}}}, "max"),
    ],
)
def test_a_model_is_told_how_much_to_reason_if_its_template_can(
    api: Translator, body: dict[str, Any], effort: str | None
) -> None:
    assert ask(api, **body).status == 200
    told = parsed(api.triton.seen[-1].get("chat_template_kwargs", "{}"))
    assert told == ({"reasoning_effort?": effort} if effort else {})


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_by_name(api: Translator, stream: bool) -> None:
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    reply = ask(api, '{"city": "Rome"}', tools=TOOLS, tool_choice=choice, stream=stream)
    ended = events_of(reply)[-2]["delta"] if stream else reply.body
    assert ended["stop_reason"] == "tool_use"
    held = parsed(api.triton.seen[-1]["sampling_parameters"]["json_schema"])
    assert held["properties"] == SCHEMA["properties"]


def test_blocks_become_a_chat(api: Translator) -> None:
    text = {"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    use = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{**text, "text": "sun"}]}
    messages = [
        {"role": "user", "content": [text]},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, use]},
        {"role": "user", "content": [{"type": "text", "text": "Well?"}, result]},
    ]
    ask(api, messages=messages, system=[{**text, "text": "Be short."}], tools=TOOLS)
    seen = api.triton.seen[-1]
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    calls = [{"id": "c1", "type": "function", "function": function}]
    assert parsed(seen["messages"]) == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "user", "content": "Well?"},
    ]
    tool = {"name": "weather", "description": "Looks.", "parameters": SCHEMA}
    assert parsed(seen["tools"]) == [{"type": "function", "function": tool}]


def test_an_image_is_refused_by_a_model_of_texts(api: Translator) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"x").decode()}
    image = {"type": "image", "source": source}
    reply = ask(api, [image])
    assert reply.status == 400
    assert "reads only texts" in reply.body["error"]["message"]
    assert ask(api, [{**FOUND, "content": [image]}]).status == 200, "it says that it can't see it"
    assert "image" not in api.triton.seen[-1]


def test_an_answer_that_is_begun_is_continued(api: Translator) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
    ask(api, messages=messages, metadata={"user_id": "ann"})
    seen = api.triton.seen[-1]
    assert parsed(seen["chat_template_kwargs"]) == {"continue_final_message": True}
    assert seen["user"] == "ann"


def test_tokens_are_counted(api: Translator) -> None:
    messages = [{"role": "user", "content": "a b c"}]
    choice = {"type": "any"}
    body = {"model": "echo", "messages": messages, "tools": TOOLS, "tool_choice": choice}
    assert api.post("/v1/messages/count_tokens", **body).body == {"input_tokens": 3}
    seen = api.triton.seen[-1]
    assert json.loads(seen.pop("tokenizer")) == {"ask": "tokenize"}, "nothing is generated"
    assert set(seen) - {"sampling_parameters", "model"} == {"messages", "tools"}


def test_a_model_sees_the_tools_that_its_client_runs(api: Translator) -> None:
    """Also one that another server would hide until a search for tools has found it."""
    content = [{**FOUND, "content": [{"type": "tool_reference", "tool_name": "now"}]}]
    deferred = {"name": "now", "input_schema": SCHEMA, "defer_loading": True}
    cached = {**TOOLS[0], "cache_control": {"type": "ephemeral"}, "strict": True}
    assert ask(api, content, tools=[SEARCH, deferred, cached]).status == 200
    seen = api.triton.seen[-1]
    assert [one["function"]["name"] for one in parsed(seen["tools"])] == ["now", "weather"]
    assert parsed(seen["messages"])[0]["content"] == "now"


def test_what_claude_code_sends_beside_a_chat_is_taken(api: Translator) -> None:
    """Its books' header, by which no two conversations would begin alike, is not told."""
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.c24;"}
    reply = ask(
        api,
        messages=[{"role": "user", "content": "Hi"}, {"role": "system", "content": "Agents: none"}],
        system=[billing, {"type": "text", "text": "Be kind."}],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "{}"},
        diagnostics={"previous_message_id": None},
    )
    assert reply.status == 200
    assert [one["content"] for one in parsed(api.triton.seen[-1]["messages"])] == [
        *("Be kind.", "Hi", "Agents: none")
    ]


@pytest.mark.parametrize(
    "given, arguments", [({"a": 1}, '{"a": 1}'), (None, "{}"), ([], "{}"), ('{"a', '{"a')]
)
def test_any_input_of_an_earlier_call_goes_to_the_model(
    api: Translator, given: Any, arguments: str
) -> None:
    use = {"type": "tool_use", "id": "c1", "name": "weather", "input": given}
    failed = {**FOUND, "content": None, "is_error": True}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [failed]}]
    assert ask(api, messages=[{"role": "user", "content": "Hi"}, *turns]).status == 200
    _, calling, told = parsed(api.triton.seen[-1]["messages"])
    assert calling["tool_calls"][0]["function"]["arguments"] == arguments
    assert told["content"] == "The tool failed."


def test_a_silent_stream_is_kept_alive(api: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "SILENT_S", 0.0)
    written = CALL.replace("Rome", "New York")
    events = events_of(ask(api, written, tools=TOOLS, stream=True))
    assert [event["type"] for event in events].count("ping") > 1
    tools = [{"type": "function", "function": {"name": "weather"}}]
    chat = [{"role": "user", "content": written}]
    reply = api.chat(messages=chat, tools=tools, stream=True)
    assert ": \n\n" in reply.text, "a comment, which clients leave out"


def test_errors_are_anthropics(api: Translator) -> None:
    kinds = {}
    for reply in (ask(api, "!400"), ask(api, "!500"), ask(api, "!503"), ask(api, model="no")):
        kinds[reply.status] = reply.body["error"]["type"]
    assert kinds == {
        400: "invalid_request_error",
        500: "api_error",
        503: "overloaded_error",
        404: "not_found_error",
    }
    reply = ask(api, "!400")
    assert reply.body["request_id"] == reply.headers["request-id"]
    last = events_of(ask(api, "a b!fails", stream=True))[-1]
    assert last["error"]["type"] == "overloaded_error"


def test_the_tool_runner_is_told_to_go_on_without_a_thread(api: Translator) -> None:
    reply = ask(api, "hello", thread={"type": "create"})
    assert reply.status == 400
    assert reply.body["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_models_are_listed_for_anthropics_clients(api: Translator) -> None:
    assert api.send("HEAD", "/").status == 200
    listed = api.get("/v1/models?limit=1000").body
    first = listed["data"][0]
    assert (first["type"], first["display_name"]) == ("model", "batched")
    assert first["created_at"].startswith("20")
    assert (listed["has_more"], listed["first_id"]) == (False, "batched")
    assert listed["last_id"] == listed["data"][-1]["id"]


@pytest.mark.parametrize(
    "written, told",
    [
        ('{"city": "New York"}', {}),
        (f'{{"city":{"12345" * 9}}}', {"city": int("12345" * 9)}),
        (f'{{"city":{"1" * 5000}}}', {}),
    ],
    ids=["cut off", "45 digits", "5000 digits"],
)
def test_the_input_of_a_call_is_whole_or_empty(api: Translator, written: str, told: Any) -> None:
    choice = {"type": "tool", "name": "weather"}
    reply = ask(api, written, tools=TOOLS, tool_choice=choice, max_tokens=2)
    assert reply.body["content"][0]["input"] == told
    assert (reply.body["stop_reason"] == "max_tokens") is (" York" in written)


def test_an_answer_is_held_by_the_older_name_too(api: Translator) -> None:
    ask(api, output_format={"type": "json_schema", "schema": SCHEMA})
    assert parsed(api.triton.seen[-1]["sampling_parameters"]["json_schema"]) == SCHEMA

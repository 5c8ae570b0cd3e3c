"""``/v1/responses``: what reaches the model, the items and events of its answer, and what is kept.

The fake model repeats the last message, so a message is also what the model would have written.
"""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from hf_triton.ports.openai.responses import kept as kept_responses
from hf_triton.ports.openai.responses.kept import EarlierResponses, KeptResponses, item_id
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.settings import Access, Caller
from tests.unit.openai_api.conftest import Reply, Starter, Translator

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}]
HOSTED = [{"type": kind} for kind in ("web_search", "web_search_preview_2025_03_11", "mcp")]
HOSTED.append({"type": "local_shell"})
SPACE = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": TOOLS}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


def ask(api: Translator, **body: Any) -> Reply:
    return api.post("/v1/responses", **{"model": "echo", "input": "a b c", **body})


def events_of(reply: Reply) -> list[dict[str, Any]]:
    """The events' data, whose types their names repeat."""
    pairs = [event.split("\ndata: ") for event in reply.text.split("\n\n") if event]
    found = [Reply(200, {}, data).body for _, data in pairs]
    assert [name for name, _ in pairs] == [f"event: {event['type']}" for event in found]
    return found


def test_a_response_has_all_fields_that_the_package_needs(api: Translator) -> None:
    body = ask(api, instructions="Be short.", metadata={"a": "b"}, store=True).body
    response = Response.model_validate(body)
    assert response.output_text == "a b c"
    assert response.status == "completed"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (6, 3)
    assert (response.instructions, response.metadata) == ("Be short.", {"a": "b"})
    assert body["store"] is True


def test_a_stream_adds_up_to_the_whole(api: Translator) -> None:
    events = events_of(ask(api, stream=True))
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * 3,
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event["delta"] for event in events if "delta" in event) == "a b c"
    whole = ask(api).body
    last = events[-1]["response"]
    for response in (whole, last):
        response["output"][0].pop("id")
        for name in ("id", "created_at", "completed_at"):
            response.pop(name)
    assert last == whole
    assert events[0]["response"]["output"] == []


REASONS = {"chat_template_kwargs": {"chat_format": {"reasoning": "think"}}}


def test_reasoning_is_an_item_before_the_answer(api: Translator) -> None:
    reply = ask(api, input="<think>Let me see </think> It rains", **REASONS, stream=True)
    events = events_of(reply)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:8] == [
        *("output_item.added", "content_part.added"),
        *["reasoning_text.delta"] * 3,
        "reasoning_text.done",
    ]
    assert kinds[8:12] == [
        *("content_part.done", "output_item.done", "output_item.added", "content_part.added"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response = Response.model_validate(events[-1]["response"])
    assert response.output_text == "It rains"
    reasoning, _ = response.output
    assert reasoning.type == "reasoning"
    assert [(part.type, part.text) for part in reasoning.content or ()] == [
        ("reasoning_text", "Let me see")
    ]


@pytest.mark.parametrize("call", [False, True])
def test_earlier_reasoning_goes_with_what_came_after_it(api: Translator, call: bool) -> None:
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    function = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    said = {"role": "assistant", "content": "Yes."}
    asked = {"role": "user", "content": "Well?"}
    ask(api, input=[asked, reasoning, function if call else said, asked])
    message = Reply(200, {}, api.triton.seen[-1]["messages"]).body[1]
    assert (message["role"], message["reasoning_content"]) == ("assistant", "hm")
    assert message["content"] == (None if call else "Yes.")
    assert ("tool_calls" in message) is call


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_off_is_incomplete(api: Translator, stream: bool) -> None:
    reply = ask(api, max_output_tokens=2, stream=stream)
    body = reply.body if not stream else events_of(reply)[-1]["response"]
    assert body["status"] == body["output"][0]["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert api.triton.seen[-1]["sampling_parameters"]["max_tokens"] == 2


def test_text_and_calls_are_items_of_their_own(api: Translator) -> None:
    reply = ask(api, input=f"I look. {CALL}{CALL}", tools=TOOLS, stream=True)
    events = events_of(reply)
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert output[0]["content"][0]["text"] == "I look. "
    assert [item["arguments"] for item in output[1:]] == ['{"city": "Rome"}'] * 2
    assert len({item["call_id"] for item in output[1:]}) == 2
    for index, item in enumerate(output):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added"
        assert own[-1] == {**own[-1], "type": "response.output_item.done", "item": item}
        assert {event["item_id"] for event in own if "item_id" in event} == {item["id"]}
        deltas = "".join(event["delta"] for event in own if "delta" in event)
        assert deltas == item.get("arguments", "I look. ")


def test_items_become_a_chat(api: Translator) -> None:
    part = {"type": "input_text", "text": "Weather?"}
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [part]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [{**part, "text": "rain"}]},
    ]
    choice = {"type": "function", "name": "weather"}
    ask(api, input=items, instructions="Be short.", tools=TOOLS, tool_choice=choice)
    seen = api.triton.seen[-1]
    calls = [
        {"id": c, "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        for c in ("c1", "c2")
    ]
    assert Reply(200, {}, seen["messages"]).body == [
        {"role": "system", "content": "Be short.\n\nBe kind."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
    ]
    function = {"name": "weather", "parameters": SCHEMA, "strict": True}
    assert Reply(200, {}, seen["tools"]).body == [{"type": "function", "function": function}]
    assert "json_schema" in seen["sampling_parameters"]


def test_how_much_to_reason_is_for_a_template_that_takes_it(api: Translator) -> None:
    body = ask(api, reasoning={"effort": "low", "summary": "detailed"}, text={"verbosity": "low"})
    assert (body.body["reasoning"]["effort"], body.body["text"]["verbosity"]) == ("low", "low")
    kwargs = Reply(200, {}, api.triton.seen[-1]["chat_template_kwargs"]).body
    assert kwargs == {"reasoning_effort?": "low"}


def test_a_format_holds_the_answer(api: Translator) -> None:
    text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    assert ask(api, text=text).body["text"] == text
    held = api.triton.seen[-1]["sampling_parameters"]["json_schema"]
    assert Reply(200, {}, held).body == SCHEMA


def test_log_probabilities_where_they_are_included(api: Translator) -> None:
    body = ask(api, include=["message.output_text.logprobs"], top_logprobs=2).body
    logprobs = Response.model_validate(body).output[0].content[0].logprobs  # type: ignore[union-attr, index]
    assert logprobs is not None
    assert [entry.logprob for entry in logprobs] == [-1.5] * 3


def test_an_error_after_the_first_event_is_a_failed_response(api: Translator) -> None:
    last = events_of(ask(api, input="a b!fails", stream=True))[-1]
    assert last["type"] == "response.failed"
    assert Response.model_validate(last["response"]).error is not None
    assert ask(api, input="!503", stream=True).status == 503


def test_hosted_tools_are_left_out(api: Translator) -> None:
    body = ask(api, tools=[*HOSTED, *TOOLS], include=["web_search_call.results"]).body
    assert [tool["name"] for tool in body["tools"]] == ["weather"], "what was offered is told"
    assert len(Reply(200, {}, api.triton.seen[-1]["tools"]).body) == 1
    assert ask(api, tools=HOSTED, tool_choice="auto").status == 200
    assert "tools" not in api.triton.seen[-1]


def test_a_call_of_a_namespace_is_told_under_it(api: Translator) -> None:
    tools = [*TOOLS, SPACE]
    call = CALL.replace("weather", "agents__weather")
    response = Response.model_validate(ask(api, input=f"{CALL}{call}", tools=tools).body)
    calls = response.output
    assert [(one.type, one.name, one.namespace) for one in calls] == [  # type: ignore[union-attr]
        ("function_call", "weather", None),
        ("function_call", "weather", "agents"),
    ]
    choice = {"type": "function", "name": "weather", "namespace": "agents"}
    item = {**choice, "type": "function_call", "call_id": "c1", "arguments": "{}"}
    ask(api, input=[item, {"role": "user", "content": "a"}], tools=tools, tool_choice=choice)
    seen = api.triton.seen[-1]
    names = [tool["function"]["name"] for tool in Reply(200, {}, seen["tools"]).body]
    assert names == ["weather", "agents__weather"]
    [call, _] = Reply(200, {}, seen["messages"]).body
    assert call["tool_calls"][0]["function"]["name"] == "agents__weather"
    assert ask(api, input=CALL, tools=[SPACE]).body["output"][0]["namespace"] == "agents"


PATH = "/v1/responses"


def asked(api: Translator, **body: Any) -> Reply:
    return api.post(PATH, **{"model": "echo", "input": "a b", **body})


def said(api: Translator) -> list[tuple[str, str]]:
    messages = Reply(200, {}, api.triton.seen[-1]["messages"]).body
    return [(message["role"], message["content"]) for message in messages]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_from_an_earlier_response(api: Translator, stream: bool) -> None:
    first = asked(api, instructions="Be kind.", stream=stream)
    text = first.text.rpartition("data: ")[2] if stream else first.text
    body = Reply(200, {}, text).body
    second = asked(
        api, input="c", previous_response_id=(body["response"] if stream else body)["id"]
    )
    third = asked(api, input="d", previous_response_id=second.body["id"]).body
    assert third["previous_response_id"] == second.body["id"]
    turns = [("user", "a b"), ("assistant", "a b"), ("user", "c"), ("assistant", "c")]
    assert said(api) == [*turns, ("user", "d")], "instructions are of one response alone"


def test_an_item_is_referred_to(api: Translator) -> None:
    [item] = asked(api).body["output"]
    reference = {"type": "item_reference", "id": item["id"]}
    second = asked(api, input=[reference, {"role": "user", "content": "c"}]).body
    assert said(api) == [("assistant", "a b"), ("user", "c")]
    asked(api, input="d", previous_response_id=second["id"])
    assert said(api)[0] == ("assistant", "a b")
    twice = asked(api, input=[reference, reference])
    assert twice.error["param"] == "input[1]"


def test_a_response_is_told_again_and_forgotten(api: Translator) -> None:
    answered = asked(api).body
    path = f"{PATH}/{answered['id']}"
    assert api.get(path).body == answered
    Response.model_validate(answered)
    assert api.get(f"{path}?stream=true").status == 400
    assert api.send("DELETE", f"{path}?stream=true").body["deleted"] is True
    for reply in (api.get(path), api.send("DELETE", path)):
        assert (reply.status, reply.error["param"]) == (404, "id")
    gone = asked(api, previous_response_id=answered["id"])
    assert (gone.status, gone.error["code"]) == (400, "previous_response_not_found")


def test_what_is_not_to_be_stored_is_not(api: Translator, starter: Starter) -> None:
    answered = asked(api, store=False).body
    assert answered["store"] is False
    assert api.get(f"{PATH}/{answered['id']}").status == 404
    off = starter.api(keep_s=0)
    answered = asked(off, store=True).body
    assert answered["store"] is False
    assert off.get(f"{PATH}/{answered['id']}").status == 404


@pytest.mark.threat("kept-responses")
def test_nobody_reads_anothers(starter: Starter) -> None:
    api = starter.api(access=Access((Caller("alice", "a" * 16), Caller("bob", "b" * 16))))
    api.headers["Authorization"] = f"Bearer {'a' * 16}"
    answered = asked(api).body
    reference = {"type": "item_reference", "id": answered["output"][0]["id"]}
    api.headers["Authorization"] = f"Bearer {'b' * 16}"
    path = f"{PATH}/{answered['id']}"
    tried = (api.get(path), api.send("DELETE", path))
    assert [reply.status for reply in tried] == [404] * 2
    assert asked(api, previous_response_id=answered["id"]).status == 400
    assert asked(api, input=[reference]).status == 400
    api.headers["Authorization"] = f"Bearer {'a' * 16}"
    assert api.get(path).status == 200


def put(kept: KeptResponses, caller: str, response_id: str, size: int, before: Any = None) -> bool:
    output = [{"id": item_id("msg", response_id, 0), "text": "x" * size}]
    response = {"id": response_id, "previous_response_id": before, "output": output}
    return EarlierResponses(kept, caller, caller).put(response["id"], response, [])


@pytest.mark.threat("kept-responses")
def test_a_caller_pushes_out_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptResponses(60)
    assert put(kept, "alice", "first", 10)
    for number in range(40):
        assert put(kept, "bob", f"b{number}", 2**20)
    assert not put(kept, "bob", "huge", 33 * 2**20)
    assert kept.num_bytes_of("bob") <= 32 * 2**20
    assert kept.find("first", "alice")
    assert kept.find("b39", "bob")
    assert kept.find("b0", "bob") is None
    monkeypatch.setattr(kept_responses, "ALL_BYTES", 2**20)
    put(kept, "carol", "c", 10)
    assert kept.find("first", "alice"), "who has most loses first"
    assert kept.find("b39", "bob") is None
    for number in range(2000):
        put(kept, "alice", f"a{number}", 10)
    assert kept.num_bytes_of("alice") <= 2**20


def test_what_is_used_is_kept_longer() -> None:
    now_s = [0.0]
    kept = KeptResponses(60, lambda: now_s[0])
    put(kept, "", "one", 10)
    put(kept, "", "two", 10, "one")
    put(kept, "", "other", 10)
    now_s[0] = 50
    EarlierResponses(kept).until("two")
    now_s[0] = 100
    assert [item["id"] for item in EarlierResponses(kept).until("two")] == [
        "msg_one00",
        "msg_two00",
    ]
    assert kept.find("other", "") is None


@pytest.mark.threat("kept-responses")
def test_what_is_referred_to_is_no_more_than_a_body_may_be() -> None:
    kept, before = KeptResponses(60), None
    for number in range(3):
        output = [{"id": f"i{number}", "content": [[]] * 100_000}]
        response = {"id": f"r{number}", "previous_response_id": before, "output": output}
        EarlierResponses(kept).put(f"r{number}", response, [])
        before = f"r{number}"
    assert EarlierResponses(kept).until("r1")
    with pytest.raises(ApiError, match="too many lists"):
        EarlierResponses(kept).until("r2")

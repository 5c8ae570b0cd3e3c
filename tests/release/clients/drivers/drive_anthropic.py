"""Anthropic's package, as its README shows it."""

from __future__ import annotations

import json

import anthropic
from tried import SAID, joined, raises, tried

client = anthropic.Anthropic()
ASKED = {
    "model": "chat",
    "max_tokens": 200,
    "messages": [{"role": "user", "content": SAID}],
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}}
TOOL = {"name": "weather", "input_schema": {**SCHEMA, "required": ["city"]}}


@anthropic.beta_tool
def weather(city: str) -> str:
    """Tells the weather."""
    return f"rain in {city}"


SCRIPT = [{"name": "weather", "arguments": {"city": "Rome"}}, "It rains."]
WORKING = {
    "model": "agent",
    "max_tokens": 4096,
    "tools": [weather],
    "messages": [{"role": "user", "content": f"<script>{json.dumps(SCRIPT)}</script>"}],
}

with tried("messages"):
    done = client.messages.create(**ASKED, system="Be kind.")
    assert done.content[0].text, done
with tried("messages.stream()"), client.messages.stream(**ASKED) as stream:
    assert joined(stream.text_stream)
    assert stream.get_final_message().usage.output_tokens
with tried("messages with a forced tool, and its output"):
    done = client.messages.create(
        **ASKED, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}
    )
    [use] = [block for block in done.content if block.type == "tool_use"]
    assert "city" in use.input
    said = [{"type": "tool_result", "tool_use_id": use.id, "content": "rain"}]
    turns = [{"role": "assistant", "content": done.content}, {"role": "user", "content": said}]
    again = {**ASKED, "messages": [*ASKED["messages"], *turns]}
    assert client.messages.create(**again, tools=[TOOL]).stop_reason
with tried("beta.messages.tool_runner"):
    assert client.beta.messages.tool_runner(**WORKING).until_done().content[0].text == "It rains."
with tried("beta.messages.tool_runner, streamed"):
    runner = client.beta.messages.tool_runner(**WORKING, stream=True)
    reasons = [stream.get_final_message().stop_reason for stream in runner]
    assert reasons == ["tool_use", "end_turn"], reasons
with tried("count_tokens"):
    counted = client.messages.count_tokens(model="chat", messages=ASKED["messages"])
    assert counted.input_tokens
with tried("models"):
    assert "chat" in [model.id for model in client.models.list()]
with tried("BadRequestError: a prompt that is too long"):
    long = {**ASKED, "messages": [{"role": "user", "content": "one " * 5000}]}
    with raises(anthropic.BadRequestError, "prompt is too long"):
        client.messages.create(**long)
with tried("NotFoundError"), raises(anthropic.NotFoundError, "not_found_error"):
    client.messages.create(**{**ASKED, "model": "nobody"})

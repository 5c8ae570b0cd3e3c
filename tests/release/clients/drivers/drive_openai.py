"""OpenAI's package, as its README shows it."""

from __future__ import annotations

import asyncio
import json

import openai
from pydantic import BaseModel
from tried import EXPECTED, PROMPT, SAID, joined, raises, tried

client = openai.OpenAI()
MESSAGES = [{"role": "user", "content": SAID}]
ASKED = {"model": "chat", "messages": MESSAGES, "max_completion_tokens": 200}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}}
STRICT = {**SCHEMA, "required": ["city"], "additionalProperties": False}
TOOL = {"name": "weather", "description": "Tells the weather.", "parameters": STRICT}


class Answer(BaseModel, extra="forbid"):
    happy: bool


with tried("models"):
    assert "demo" in [model.id for model in client.models.list()]
    assert client.models.retrieve("demo").id == "demo"
with tried("completions"):
    done = client.completions.create(model="demo", prompt=PROMPT, max_tokens=12, temperature=0)
    assert done.choices[0].text == EXPECTED, done
with tried("completions, streamed"):
    chunks = client.completions.create(
        model="demo", prompt=PROMPT, max_tokens=12, temperature=0, stream=True
    )
    assert joined(chunk.choices[0].text for chunk in chunks) == EXPECTED
with tried("chat"):
    assert client.chat.completions.create(**ASKED).choices[0].message.content
with tried("chat, streamed with usage"):
    *chunks, last = client.chat.completions.create(
        **ASKED, stream=True, stream_options={"include_usage": True}
    )
    assert joined(chunk.choices[0].delta.content for chunk in chunks)
    assert last.usage.completion_tokens
with tried("chat.completions.stream()"), client.chat.completions.stream(**ASKED) as events:
    assert joined(event.delta for event in events if event.type == "content.delta")
    assert events.get_final_completion().choices[0].message.content
with tried("chat.completions.parse()"):
    done = client.chat.completions.parse(**ASKED, response_format=Answer)
    assert isinstance(done.choices[0].message.parsed, Answer)
with tried("chat with a forced tool, and its output"):
    tools = [{"type": "function", "function": TOOL}]
    named = {"type": "function", "function": {"name": "weather"}}
    done = client.chat.completions.create(**ASKED, tools=tools, tool_choice=named)
    message = done.choices[0].message
    assert "city" in json.loads(message.tool_calls[0].function.arguments)
    output = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    asked = {**ASKED, "messages": [*MESSAGES, message, output]}
    assert client.chat.completions.create(**asked, tools=tools).choices[0].message
with tried("responses"):
    assert client.responses.create(model="chat", input=SAID, max_output_tokens=60).output_text
with tried("responses, streamed"):
    events = client.responses.create(model="chat", input=SAID, max_output_tokens=60, stream=True)
    assert joined(event.delta for event in events if event.type == "response.output_text.delta")
with tried("responses.stream()"), client.responses.stream(model="chat", input=SAID) as events:
    for _ in events:
        pass
    assert events.get_final_response().output_text
with tried("responses.parse()"):
    done = client.responses.parse(model="chat", input=SAID, text_format=Answer)
    assert isinstance(done.output_parsed, Answer)
with tried("responses with a forced tool"):
    tools = [{"type": "function", "strict": True, **TOOL}]
    done = client.responses.create(
        model="chat", input=SAID, tools=tools, tool_choice={"type": "function", "name": "weather"}
    )
    assert "city" in json.loads(done.output[0].arguments)
with tried("embeddings"):
    rows = client.embeddings.create(model="embedding", input=["A dog.", "A cat."]).data
    assert [len(row.embedding) for row in rows] == [64, 64]
with tried("AsyncOpenAI"):
    created = openai.AsyncOpenAI().chat.completions.create(**ASKED)
    assert asyncio.run(created).choices[0].message.content
with tried("BadRequestError: context_length_exceeded"):
    long = {**ASKED, "messages": [{"role": "user", "content": "one " * 5000}]}
    with raises(openai.BadRequestError, "context_length_exceeded", "maximum context length"):
        client.chat.completions.create(**long)
with tried("NotFoundError"), raises(openai.NotFoundError, "model_not_found"):
    client.chat.completions.create(**{**ASKED, "model": "nobody"})

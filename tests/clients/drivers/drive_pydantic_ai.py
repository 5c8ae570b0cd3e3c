"""pydantic-ai with its default way to structured output: a tool that the model must call."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from tried import SAID, joined, tried


class Answer(BaseModel, extra="forbid"):
    happy: bool


chat = OpenAIChatModel("chat")

with tried("run"):
    assert Agent(chat).run_sync(SAID).output
with tried("run_stream"):
    assert joined(Agent(chat).run_stream_sync(SAID).stream_text(delta=True, debounce_by=None))
with tried("output_type"):
    assert isinstance(Agent(chat, output_type=Answer).run_sync(SAID).output, Answer)
with tried("a tool"):
    agent = Agent(chat)
    agent.tool_plain(lambda: "rain", name="weather")
    assert agent.run_sync(SAID).output
with tried("OpenAIResponsesModel"):
    model = OpenAIResponsesModel("chat")
    assert isinstance(Agent(model, output_type=Answer).run_sync(SAID).output, Answer)

"""Strands' Agent over its models of OpenAI. What the model ``agent`` writes is in the message
(tests/clients/agent).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pydantic import BaseModel
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel
from tried import SAID, joined, tried


@tool
def weather(city: str) -> str:
    """Tells the weather."""
    return f"rain in {city}"


class Answer(BaseModel, extra="forbid"):
    happy: bool


def agent(name: str, model: type = OpenAIModel, **options: Any) -> Agent:
    return Agent(model=model(model_id=name), callback_handler=None, **options)


def task(*script: Any) -> str:
    return f"Do it. <script>{json.dumps(script)}</script>"


async def pieces() -> list[str]:
    return [event.get("data", "") async for event in agent("chat").stream_async(SAID)]


CALLS = {"name": "weather", "arguments": {"city": "Rome"}}
LONG = "It rains. " * 100  # longer than an answer is where nobody says how long

with tried("Agent"):
    talks = agent("chat", system_prompt="Be kind.")
    assert str(talks(SAID)).strip()
    assert str(talks(SAID)).strip()
    assert talks.event_loop_metrics.accumulated_usage["outputTokens"]
with tried("stream_async"):
    assert joined(iter(asyncio.run(pieces())))
for model in (OpenAIModel, OpenAIResponsesModel):
    with tried(f"{model.__name__}: a tool, and a long answer"):
        works = agent("agent", model, tools=[weather])
        assert str(works(task(CALLS, LONG))).strip() == LONG.strip()
        assert "rain in Rome" in str(works.messages), works.messages
with tried("structured_output_model"):
    wanted = {"name": "Answer", "arguments": {"happy": True}}
    done = agent("agent")(task(wanted), structured_output_model=Answer)
    assert done.structured_output == Answer(happy=True), done

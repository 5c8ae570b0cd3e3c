"""Strands' Agent over its OpenAIModel."""

from __future__ import annotations

import asyncio
from typing import Any

from strands import Agent
from strands.models.openai import OpenAIModel
from tried import SAID, joined, tried


def agent(name: str, **options: Any) -> Agent:
    return Agent(model=OpenAIModel(model_id=name), callback_handler=None, **options)


async def pieces() -> list[str]:
    return [event.get("data", "") async for event in agent("chat").stream_async(SAID)]


with tried("Agent"):
    talks = agent("chat", system_prompt="Be kind.")
    assert str(talks(SAID)).strip()
    assert str(talks(SAID)).strip()
    assert talks.event_loop_metrics.accumulated_usage["outputTokens"]
with tried("stream_async"):
    assert joined(iter(asyncio.run(pieces())))

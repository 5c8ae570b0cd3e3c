"""OpenAI's Agents SDK with its default model, which speaks to /v1/responses."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from pydantic import BaseModel
from tried import SAID, joined, tried

set_tracing_disabled(True)


@function_tool
def weather() -> str:
    """Tells the weather."""
    return "rain"


class Answer(BaseModel, extra="forbid"):
    happy: bool


def agent(**options: Any) -> Agent:
    return Agent(name="chat", model="chat", instructions="Be kind.", **options)


async def pieces() -> list[str]:
    run = Runner.run_streamed(agent(), SAID)
    kind = "response.output_text.delta"
    return [
        event.data.delta
        async for event in run.stream_events()
        if event.type == "raw_response_event" and event.data.type == kind
    ]


async def main() -> None:
    with tried("Runner.run"):
        assert (await Runner.run(agent(), SAID)).final_output
    with tried("Runner.run_streamed"):
        assert joined(iter(await pieces()))
    with tried("output_type"):
        done = await Runner.run(agent(output_type=Answer), SAID)
        assert isinstance(done.final_output, Answer)
    with tried("a tool in a turn, and its output"):
        forced = agent(tools=[weather], model_settings=ModelSettings(tool_choice="weather"))
        done = await Runner.run(forced, SAID, max_turns=3)
        assert "tool_call_output_item" in [item.type for item in done.new_items], done
    with tried("previous_response_id"):
        first = await Runner.run(agent(), SAID)
        second = await Runner.run(agent(), SAID, previous_response_id=first.last_response_id)
        used = [run.raw_responses[0].usage.input_tokens for run in (first, second)]
        assert used[1] > used[0], used
    with tried("auto_previous_response_id, in a turn with a tool"):
        done = await Runner.run(forced, SAID, max_turns=3, auto_previous_response_id=True)
        assert len(done.raw_responses) == 2, done


asyncio.run(main())

"""Microsoft's Agent Framework, whose OpenAIChatClient speaks to /v1/responses."""

from __future__ import annotations

import asyncio
from typing import Annotated

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from pydantic import BaseModel, Field
from tried import SAID, joined, tried


def weather(city: Annotated[str, Field(max_length=9)]) -> str:
    """Tells the weather."""
    return f"rain in {city}"


class Answer(BaseModel, extra="forbid"):
    happy: bool


def agent(client: type = OpenAIChatClient, **options: object) -> Agent:
    return Agent(client=client(model="chat"), instructions="Be kind.", **options)


async def pieces() -> list[str]:
    return [update.text async for update in agent().run(SAID, stream=True)]


async def main() -> None:
    with tried("Agent.run"):
        assert (await agent().run(SAID)).text
    with tried("Agent.run with stream"):
        assert joined(iter(await pieces()))
    with tried("a session, whose turns go on from a kept response"):
        talks = agent()
        session = talks.create_session()
        first = await talks.run(SAID, session=session)
        second = await talks.run(SAID, session=session)
        assert session.service_session_id == second.raw_representation.response_id, session
        tokens = [one.usage_details["input_token_count"] for one in (first, second)]
        assert tokens[1] > tokens[0], tokens
    with tried("response_format"):
        done = await agent().run(SAID, options={"response_format": Answer})
        assert isinstance(done.value, Answer), done
    with tried("a forced tool, and its output"):
        options = {"tool_choice": {"mode": "required", "required_function_name": "weather"}}
        done = await agent(tools=[weather]).run(SAID, options=options)
        kinds = [content.type for message in done.messages for content in message.contents]
        assert {"function_call", "function_result"} <= {*kinds}, kinds
    with tried("OpenAIChatCompletionClient"):
        assert (await agent(OpenAIChatCompletionClient).run(SAID)).text


asyncio.run(main())

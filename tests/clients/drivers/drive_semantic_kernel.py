"""Semantic Kernel's kernel, services and agents. What the model ``agent`` writes is in the message
(tests/clients/agent).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pydantic import BaseModel
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent, OpenAIResponsesAgent
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
    OpenAITextCompletion,
    OpenAITextEmbedding,
)
from semantic_kernel.functions import KernelArguments, kernel_function
from tried import PROMPT, SAID, joined, tried

LONG = ("It rains. " * 100).strip()  # longer than an answer is by default
CALL = {"name": "Sky-weather", "arguments": {"city": "Rome"}}


class Answer(BaseModel, extra="forbid"):
    happy: bool


class Sky:
    def __init__(self) -> None:
        self.seen: list[str] = []

    @kernel_function(description="Tells the weather.")
    def weather(self, city: str) -> str:
        self.seen.append(city)
        return f"rain in {city}"


def task(*script: Any) -> str:
    return f"Do it. <script>{json.dumps(script)}</script>"


def agent(model: str, **options: Any) -> ChatCompletionAgent:
    return ChatCompletionAgent(service=OpenAIChatCompletion(ai_model_id=model), **options)


async def main() -> None:
    with tried("Kernel.invoke_prompt"):
        kernel = Kernel()
        kernel.add_service(OpenAIChatCompletion(ai_model_id="chat"))
        assert str(await kernel.invoke_prompt(SAID))
    with tried("ChatCompletionAgent in a thread, with a plugin"):
        sky = Sky()
        works = agent("agent", plugins=[sky], instructions="Be kind.")
        done = await works.get_response(messages=task(CALL, LONG))
        assert str(done.message) == LONG, done
        assert sky.seen == ["Rome"], done
        again = await works.get_response(messages=task("Well"), thread=done.thread)
        assert str(again.message) == "Well", again
    with tried("ChatCompletionAgent.invoke_stream, with a plugin"):
        sky = Sky()
        stream = agent("agent", plugins=[sky]).invoke_stream(messages=task(CALL, LONG))
        assert joined(iter([str(piece.message) async for piece in stream])) == LONG
        assert sky.seen == ["Rome"], sky.seen
    with tried("response_format"):
        settings = OpenAIChatPromptExecutionSettings(response_format=Answer)
        done = await agent("chat", arguments=KernelArguments(settings)).get_response(messages=SAID)
        assert Answer.model_validate_json(str(done.message)), done
    with tried("OpenAIResponsesAgent, two turns in a thread, with a plugin"):
        sky = Sky()
        client = OpenAIResponsesAgent.create_client(ai_model_id="agent")
        works = OpenAIResponsesAgent(
            ai_model_id="agent", client=client, name="guide", plugins=[sky]
        )
        done = await works.get_response(messages=task(CALL, LONG))
        assert str(done.message) == LONG, done
        assert sky.seen == ["Rome"], done
        again = await works.get_response(messages=task("Well"), thread=done.thread)
        assert str(again.message) == "Well", again
    with tried("OpenAITextCompletion"):
        service = OpenAITextCompletion(ai_model_id="chat")
        settings = service.instantiate_prompt_execution_settings()
        assert str(await service.get_text_content(PROMPT, settings))
    with tried("OpenAITextEmbedding"):
        service = OpenAITextEmbedding(ai_model_id="embedding")
        assert (await service.generate_embeddings(["A dog.", "A cat."])).shape == (2, 64)


asyncio.run(main())

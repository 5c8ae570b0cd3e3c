"""LiteLLM's providers ``triton/``, ``openai/`` and ``hosted_vllm/``, and its bridges."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import litellm
from tried import EXPECTED, PROMPT, SERVER, joined, raises, tried

FOLDER = f"http://{os.environ['TRITON_HTTP']}/v2/models"
BASE = os.environ["OPENAI_BASE_URL"]
MESSAGES = [{"role": "user", "content": PROMPT}]
FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]


def asked(model: str, way: str = "generate", **options: Any) -> dict[str, Any]:
    base = f"{FOLDER}/{model}/{way}"
    named = {"model": "triton/demo", "messages": MESSAGES, "api_base": base, "max_tokens": 12}
    return {**named, **options}


def whole(response: Any) -> str:
    return str(response.choices[0].message.content)


def piece(chunk: Any) -> str:
    return chunk.choices[0].delta.content or ""


async def async_pieces(question: dict[str, Any]) -> list[str]:
    return [piece(chunk) async for chunk in await litellm.acompletion(**question, stream=True)]


async def in_messages(**options: Any) -> Any:
    return await litellm.anthropic.messages.acreate(
        model="hosted_vllm/demo", api_base=BASE, max_tokens=30, messages=MESSAGES, **options
    )


with tried("triton/ generate"):
    for model in ("demo", "demo_stream", "batched", "batched_stream"):
        assert whole(litellm.completion(**asked(model))) == EXPECTED
with tried("triton/ generate_stream"):
    for model in ("demo_stream", "batched_stream"):
        chunks = litellm.completion(**asked(model), stream=True)
        assert joined(map(piece, chunks)) == EXPECTED
with tried("triton/ generate with options"):
    options = {"top_k": 1, "stop_words": [""], "bad_words": [""], "max_retries": 2, "timeout": 60}
    assert whole(litellm.completion(**asked("demo"), **options)) == EXPECTED
with tried("triton/ infer"):  # of rank 1, which only max_batch_size 0 takes
    assert whole(litellm.completion(**asked("demo", "infer"))) == EXPECTED
with tried("triton/ async"):
    assert whole(asyncio.run(litellm.acompletion(**asked("demo")))) == EXPECTED
    assert joined(iter(asyncio.run(async_pieces(asked("demo_stream"))))) == EXPECTED
with tried("triton/ embedding"):
    found = litellm.embedding(
        model="triton/embedding", input=["A dog.", "A cat."], api_base=f"{FOLDER}/embedding/infer"
    )
    assert [len(row["embedding"]) for row in found.data] == [64, 64]
with tried("Router"):
    parameters = {name: value for name, value in asked("demo").items() if name != "messages"}
    router = litellm.Router(model_list=[{"model_name": "demo", "litellm_params": parameters}])
    assert whole(router.completion(model="demo", messages=MESSAGES)) == EXPECTED
for provider in ("openai", "hosted_vllm"):
    at = {"model": f"{provider}/demo", "api_base": BASE, "max_tokens": 30}
    with tried(f"{provider}/ completion"):
        assert whole(litellm.completion(**at, messages=MESSAGES))
    with tried(f"{provider}/ completion, streamed"):
        assert joined(map(piece, litellm.completion(**at, messages=MESSAGES, stream=True)))
    with tried(f"{provider}/ completion with tools"):
        assert litellm.completion(**at, messages=MESSAGES, tools=TOOLS).choices
    with tried(f"{provider}/ text_completion"):
        done = litellm.text_completion(**{**at, "max_tokens": 12}, prompt=PROMPT, temperature=0)
        assert done.choices[0].text == EXPECTED, done
    with tried(f"{provider}/ embedding"):
        found = litellm.embedding(
            model=f"{provider}/embedding", input=["A dog.", "A cat."], api_base=BASE
        )
        assert [len(row["embedding"]) for row in found.data] == [64, 64]
    with tried(f"{provider}/ ContextWindowExceededError"):
        long = [{"role": "user", "content": "one " * 5000}]
        with raises(litellm.ContextWindowExceededError):
            litellm.completion(**at, messages=long)
with tried("openai/ responses()"):
    done = litellm.responses(model="openai/demo", api_base=BASE, input=PROMPT)
    assert done.output[-1].content[0].text
with tried("openai/ responses(), streamed"):
    events = litellm.responses(model="openai/demo", api_base=BASE, input=PROMPT, stream=True)
    assert joined(getattr(event, "delta", "") for event in events)
with tried("hosted_vllm/ rerank()"):
    texts = ["A dog sleeps under a tree.", "The film was very good."]
    found = litellm.rerank(
        model="hosted_vllm/embedding", query="a good film", documents=texts, api_base=SERVER
    )
    assert found.results[0]["index"] == 1, found
with tried("Anthropic's messages over hosted_vllm/"):
    assert asyncio.run(in_messages())["content"][0]["text"]
with tried("Anthropic's messages with tools over hosted_vllm/"):
    tool = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}
    assert asyncio.run(in_messages(tools=[tool]))["content"]

"""Asks a model through LiteLLM in every way it has; prints the texts as one JSON object.

Arguments: ``http://host:port``, the model's name, max_tokens. Runs in LiteLLM's own environment.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import litellm  # type: ignore[import-not-found]

PROMPT = "How can you be"


def asked(api_base: str, max_tokens: int, **options: Any) -> dict[str, Any]:
    return {
        "model": "triton/demo",
        "messages": [{"role": "user", "content": PROMPT}],
        "api_base": api_base,
        "max_tokens": max_tokens,
        **options,
    }


def whole(response: Any) -> str:
    return str(response.choices[0].message.content)


def piece(chunk: Any) -> str:
    return chunk.choices[0].delta.content or ""


async def in_asyncio(question: dict[str, Any]) -> dict[str, Any]:
    chunks = await litellm.acompletion(**question, stream=True)
    return {
        "async": whole(await litellm.acompletion(**question)),
        "async stream": [piece(chunk) async for chunk in chunks],
    }


def main(server: str, model: str, max_tokens: int) -> dict[str, Any]:
    folder = f"{server}/v2/models/{model}"
    question = asked(f"{folder}/generate", max_tokens)
    parameters = {name: value for name, value in question.items() if name != "messages"}
    router = litellm.Router(model_list=[{"model_name": "demo", "litellm_params": parameters}])
    texts = {
        "generate": whole(litellm.completion(**question)),
        "top_k": whole(litellm.completion(**question, top_k=1, stop_words=[""], bad_words=[""])),
        "retries": whole(litellm.completion(**question, max_retries=2, timeout=60)),
        "router": whole(router.completion(model="demo", messages=question["messages"])),
        "stream": [piece(chunk) for chunk in litellm.completion(**question, stream=True)],
        **asyncio.run(in_asyncio(question)),
    }
    if model == "demo":  # it sends rank 1 there, which only max_batch_size 0 takes
        texts["infer"] = whole(litellm.completion(**asked(f"{folder}/infer", max_tokens)))
    return texts


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))

"""transformers' own continuous batching behind FastAPI, as thin as it gets.

Runs in uvicorn, in an environment of its own (``packages.py``); the variables ``MODEL`` and
``DTYPE`` name the folder and the type of its weights, three more the cache's size.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
from fastapi import FastAPI  # type: ignore[import-not-found]
from pydantic import BaseModel
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig

folder = os.environ["MODEL"]
numbers = itertools.count()
tokenizer: Any = AutoTokenizer.from_pretrained(folder)
model: Any = AutoModelForCausalLM.from_pretrained(
    folder, dtype=getattr(torch, os.environ["DTYPE"]), attn_implementation="sdpa"
)
model.generation_config.do_sample = False
batching = model.init_continuous_batching(
    continuous_batching_config=ContinuousBatchingConfig(
        # Where they are not given, the cache takes most of the machine's memory.
        page_size=int(os.environ["PAGE_SIZE"]),
        num_blocks=int(os.environ["NUM_BLOCKS"]),
        max_batch_tokens=int(os.environ["MAX_BATCH_TOKENS"]),
    )
)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """The manager computes in a thread of its own."""
    batching.start()
    yield
    batching.stop(block=True)


app = FastAPI(lifespan=lifespan)


class Prompt(BaseModel):
    """A request."""

    prompt: str
    max_new_tokens: int


@app.post("/generate")  # type: ignore[untyped-decorator]
async def generate(request: Prompt) -> dict[str, str]:
    """Greedy; waits for the manager without a thread."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    request_id = f"request-{next(numbers)}"
    batching.register_result_handler(
        request_id, lambda result: None if done.done() else done.set_result(result)
    )
    batching.add_request(
        tokenizer(request.prompt)["input_ids"],
        request_id=request_id,
        max_new_tokens=request.max_new_tokens,
    )
    result = await done
    return {"generated_text": tokenizer.decode(result.generated_tokens)}

"""What generates for a closed loop in this process, with the same weights: our engine, continuous
batching of transformers, its ``generate`` on padded batches as NVIDIA's tutorial calls it, vLLM.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch

from hf_triton.text_generation.in_flight.engine import InFlightEngine
from perf.gpu.device import wait
from perf.gpu.engines import Asked, engine_on, submit
from perf.gpu.speed.closed_loop import MOST_TOKENS, Answer, Request
from perf.model import write_tokenizer

MOST_CLIENTS = 256
PADDED_ROWS = 8  # NVIDIA's tutorial: dynamic batches of 8, each to the longest answer


def engine(model: Any, device: torch.device) -> AbstractContextManager[InFlightEngine]:
    """Ours."""
    return engine_on(model, device, max_num_seqs=MOST_CLIENTS, max_model_len=MOST_TOKENS)


@asynccontextmanager
async def in_flight(model: Any) -> AsyncIterator[Answer]:
    """Our engine, in this event loop."""
    with engine(model, model.device) as ours:

        async def answer(prompt: list[int], max_tokens: int) -> int:
            return len(await submit(ours, Asked(prompt, max_tokens)))

        yield answer


@asynccontextmanager
async def batching(model: Any) -> AsyncIterator[Answer]:
    """transformers' own, as it sets itself up; it calls back in this event loop."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    # It takes most of the free memory by itself, which on a CPU is everybody's.
    size: dict[str, Any] = (
        {} if model.device.type == "cuda" else {"num_blocks": 64, "max_batch_tokens": 64}
    )
    own_attention, numbers = model.config._attn_implementation, count()  # noqa: SLF001
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
        continuous_batching_config=ContinuousBatchingConfig(**size, allow_block_sharing=False),
    )
    manager.start()
    loop = asyncio.get_running_loop()

    async def answer(prompt: list[int], max_tokens: int) -> int:
        done: asyncio.Future[Any] = loop.create_future()
        name = f"request-{next(numbers)}"
        manager.register_result_handler(
            name, lambda result: None if done.done() else done.set_result(result)
        )
        manager.add_request(prompt, request_id=name, max_new_tokens=max_tokens)
        result = await done
        if result.error:
            raise RuntimeError(result.error)
        return len(result.generated_tokens)

    try:
        yield answer
    finally:
        manager.stop(block=True)
        model.set_attn_implementation(own_attention)


@asynccontextmanager
async def vllm(model: Any) -> AsyncIterator[Answer]:
    """vLLM, where this Python has it, beside the model that is on the device already."""
    from vllm import SamplingParams, TokensPrompt
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    numbers = count()

    async def answer(prompt: list[int], max_tokens: int) -> int:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        found = 0
        tokens = TokensPrompt(prompt_token_ids=prompt)
        async for output in llm.generate(tokens, params, str(next(numbers))):
            found = len(output.outputs[0].token_ids)
        return found

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        write_tokenizer(Path(folder))
        arguments = {"dtype": "bfloat16", "enable_prefix_caching": False}
        arguments |= {"max_model_len": MOST_TOKENS, "max_num_seqs": MOST_CLIENTS}
        llm: Any = AsyncLLM.from_engine_args(AsyncEngineArgs(model=folder, **arguments))
        try:
            yield answer
        finally:
            llm.shutdown()


@torch.inference_mode()
def padded_rate(model: Any, asked: Sequence[Request]) -> float:
    """Useful tokens/s of one batch: prompts padded to the longest, tokens drawn among the best ten,
    held until the longest answer ends. Beyond a batch, clients wait for each other.
    """
    longest = max(len(one.prompt) for one in asked)
    ids = [[0] * (longest - len(one.prompt)) + one.prompt for one in asked]
    mask = [[0] * (longest - len(one.prompt)) + [1] * len(one.prompt) for one in asked]
    new_tokens = max(one.max_tokens for one in asked)
    inputs = torch.tensor(ids, device=model.device), torch.tensor(mask, device=model.device)
    for number in (2, new_tokens):  # the first for what is made once
        begun_s = time.perf_counter()
        model.generate(
            inputs[0],
            attention_mask=inputs[1],
            do_sample=True,
            top_k=10,
            max_new_tokens=number,
            pad_token_id=0,
        )
        wait(model.device)
    return sum(one.max_tokens for one in asked) / (time.perf_counter() - begun_s)

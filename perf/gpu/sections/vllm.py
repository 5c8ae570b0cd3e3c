"""Tokens/s of vLLM, where this Python has it: the same weights, the same closed loop."""

from __future__ import annotations

import asyncio
import gc
from itertools import count
from typing import Any

import torch

from perf.gpu.results import Context, SkippedError
from perf.gpu.sections.closed_loop import MOST_TOKENS
from perf.gpu.sections.throughput import CLIENTS, Limit, levels, model_and_limit
from perf.model import write_tokenizer


def measure(context: Context) -> None:
    """A row for each number of clients."""
    try:
        import vllm
    except ImportError as error:
        raise SkippedError(f"no vLLM in this Python: {error}") from error
    device = torch.device(context.device)
    model, limit = model_and_limit(context, device)
    folder = context.folder / "model"
    model.save_pretrained(folder)
    write_tokenizer(folder)
    del model
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    asyncio.run(_measure(context, str(folder), f"vLLM {vllm.__version__}", limit))


async def _measure(context: Context, folder: str, name: str, limit: Limit) -> None:
    from vllm import SamplingParams, TokensPrompt
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    context.say(f"{name}: starting")
    llm: Any = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=folder,
            dtype="bfloat16",
            max_model_len=MOST_TOKENS,
            max_num_seqs=CLIENTS[-1],
            enable_prefix_caching=False,
        )
    )
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

    try:
        await levels(context, name, answer, limit)
    finally:
        llm.shutdown()

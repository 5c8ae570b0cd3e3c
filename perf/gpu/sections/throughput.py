"""Tokens/s of clients in a closed loop: ours beside what else generates here with the same weights,
and of what reading the weights and the needed keys and values at the measured bandwidth allows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from hf_runtime.errors import reason
from text_generation.kv.layer_shapes import layer_shapes

from perf.gpu.results import Context, Row
from perf.gpu.sections.ceilings import bandwidths, free_gib, wait
from perf.gpu.sections.closed_loop import (
    MOST_TOKENS,
    Answer,
    Request,
    mean_context,
    requests,
    tokens_per_s,
)
from perf.gpu.sections.engines import Asked, engine_on, submit
from perf.gpu.sections.kernels import kernels_of
from perf.gpu.sections.shapes import bytes_per_step, make_llama

CLIENTS, TINY_CLIENTS = (1, 8, 64, 256), (1, 4)
_REQUESTS_PER_CLIENT = 3
_WARM_UP = 1
_SPARE_GIB = {"llama-8b": 24.0, "llama-1b": 12.0, "tiny": 0.1}  # cache, buffers, graphs
_PADDED_ROWS = 8  # NVIDIA's tutorial: dynamic batches of 8, each to the longest answer


@dataclass(frozen=True)
class Limit:
    """What a decode step has to read, and how fast a copy goes."""

    weight_bytes: int
    kv_bytes_per_token: int
    bytes_per_s: float

    def tokens_per_s(self, sequences: int, context: float) -> float:
        """Of sequences that attend to so many tokens on average, prompts not counted."""
        read = self.weight_bytes + sequences * context * self.kv_bytes_per_token
        return sequences * self.bytes_per_s / read


def measure(context: Context) -> None:
    """Ours and where its time goes, then the others."""
    device = torch.device(context.device)
    model, limit = model_and_limit(context, device)
    asyncio.run(_levels_of(context, "in_flight", _ours(model, device), limit))
    if not context.is_fake:
        _measure_kernels(context, model, device)
    asyncio.run(_levels_of(context, "transformers, continuous batching", _batching(model), limit))
    _measure_padded(context, model, limit)


def _measure_kernels(context: Context, model: Any, device: torch.device) -> None:
    with _engine(model, device) as engine:
        for sequences in (CLIENTS[0], CLIENTS[-2]):
            for row in kernels_of(engine, sequences, device):
                context.emit("kernels of a decode step", {"sequences": sequences, **row})


def clients_of(context: Context) -> tuple[int, ...]:
    """How many there are, level by level."""
    return TINY_CLIENTS if context.is_fake else CLIENTS


def model_and_limit(context: Context, device: torch.device) -> tuple[Any, Limit]:
    """The section's model on its device, and what its steps have to read."""
    bytes_per_s = bandwidths(device, tiny=context.is_fake)["copy"]
    model = make_llama(context.shape, device, _SPARE_GIB[context.shape], context.seed)
    per_token = sum(shape.bytes_per_token for shape in layer_shapes(model, device))
    limit = Limit(bytes_per_step(model), per_token, bytes_per_s)
    context.emit(
        "model",
        {
            "model": context.shape,
            "read_per_step_gb": limit.weight_bytes / 1e9,
            "kv_kib_per_token": per_token / 1024,
            "copied_gb_per_s": bytes_per_s / 1e9,
        },
    )
    return model, limit


async def levels(context: Context, name: str, answer: Answer, limit: Limit) -> None:
    """A row for each number of clients."""
    for clients in clients_of(context):
        # Other prompts first, for what is made once: known ones would be shared.
        await tokens_per_s(answer, clients, asked_by(context, clients, _WARM_UP)[: 2 * clients])
        rate = await tokens_per_s(answer, clients, asked_by(context, clients))
        emit(context, name, clients, rate, limit)


def asked_by(context: Context, clients: int, variant: int = 0) -> list[Request]:
    """The requests of a level, no prompt like another level's."""
    number, seed = _REQUESTS_PER_CLIENT * max(clients, 2), hash((context.seed, clients, variant))
    return list(islice(requests(seed, tiny=context.is_fake), number))


def emit(context: Context, name: str, clients: int, rate: float, limit: Limit) -> None:
    """One level, beside its limit."""
    most = limit.tokens_per_s(clients, mean_context(asked_by(context, clients)))
    row: Row = {
        "clients": clients,
        "generated_by": name,
        "useful_tokens_per_s": rate,
        "limit_tokens_per_s": most,
        "limit_share": rate / most,
    }
    context.emit("closed loop, in process", row)


async def _levels_of(
    context: Context, name: str, made: AbstractAsyncContextManager[Answer], limit: Limit
) -> None:
    """The levels of what ``made`` starts and ends; what it raises is told, others are measured."""
    context.say(f"{name}: {free_gib(torch.device(context.device)):.1f} GiB free, starting")
    try:
        async with made as answer:
            await levels(context, name, answer, limit)
    except Exception as error:
        if name == "in_flight":
            raise
        why = f"{type(error).__name__}: {reason(error, 200)}"
        context.emit("not measured", {"generated_by": name, "why": why})


def _engine(model: Any, device: torch.device) -> Any:
    return engine_on(model, device, max_num_seqs=CLIENTS[-1], max_model_len=MOST_TOKENS)


@asynccontextmanager
async def _ours(model: Any, device: torch.device) -> AsyncIterator[Answer]:
    with _engine(model, device) as engine:

        async def answer(prompt: list[int], max_tokens: int) -> int:
            return len(await submit(engine, Asked(prompt, max_tokens)))

        yield answer


@asynccontextmanager
async def _batching(model: Any) -> AsyncIterator[Answer]:
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


@torch.inference_mode()
def _measure_padded(context: Context, model: Any, limit: Limit) -> None:
    """As NVIDIA's tutorial does: batches of prompts padded to the longest, sampled among the best
    ten, held until the longest answer ends. Beyond a batch, clients wait for each other.
    """
    rates: dict[int, float] = {}
    for clients in clients_of(context):
        rows = min(clients, _PADDED_ROWS)
        if rows not in rates:
            rates[rows] = _padded_rate(model, asked_by(context, clients)[:rows])
        emit(context, "the tutorial's padded batches", clients, rates[rows], limit)


def _padded_rate(model: Any, asked: Sequence[Request]) -> float:
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

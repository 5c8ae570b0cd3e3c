"""Tokens/s of clients in a closed loop on one device, the same weights and load for all, beside
what reading the weights and the keys and values at a copy's bandwidth allows: our engine,
continuous batching of transformers, its ``generate`` on padded batches as NVIDIA's tutorial does.

Prompts of 64 to 512 tokens, answers of 64 to 256: 370 tokens of keys and values in the end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from itertools import count, islice
from statistics import median
from typing import Any

import torch

from hf_triton.text_generation.engines.in_flight.engine import InFlightEngine
from hf_triton.text_generation.memory.layer_shapes import layer_shapes
from hf_triton.text_generation.options import FREE_SHARE
from perf.lab.gpu.engines import Asked, answers, engine_on, submitted
from perf.lab.gpu.models import GIB, bytes_per_step, free_gib, make_llama
from perf.lab.gpu.speed.profile import told_steps, wait
from perf.lab.gpu.told import Told

_STATED_GIB, _TINY_STATED_GIB = 8.0, 0.01
_LEAST_LEFT_GIB = 0.25  # a driver, a neighbour, a larger batch of another dtype

_PROMPT, _OUTPUT, _TINY_PROMPT, _TINY_OUTPUT = (64, 512), (64, 256), (4, 24), (2, 8)
_MOST_CLIENTS, _MOST_TOKENS = 256, _PROMPT[1] + _OUTPUT[1]
_FIRST_ID, _LAST_ID = 2, 1000  # words of every model's vocabulary
_SPARE_GIB = {"llama-8b": 24.0, "llama-1b": 12.0, "tiny": 0.1}  # cache, buffers, graphs
_REQUESTS, _FEW_REQUESTS = 3.0, 2.25  # a client, of ours and of the others; a window needs two
_PADDED_ROWS = 8  # NVIDIA's tutorial: dynamic batches of 8, each to the longest answer
_COPY_BYTES, _TINY_COPY_BYTES, _COPIES = 2**31, 2**22, 10  # far beyond caches
OURS = "ours"
Answer = Callable[[Asked], Awaitable[int]]


"""From what is asked to how many tokens came."""


def measure(told: Told, shape: str, who: str, clients: str) -> None:
    """Each of ``who`` in turn, of ``clients`` like 1,8,64."""
    race, numbers = Race(told, shape), [int(number) for number in clients.split(",")]
    for name in who.split(","):
        with told.case(name) as row:
            race.run(name, numbers)
            row["agrees"] = True


class Race:
    """One model on its device, and who generates with it."""

    def __init__(self, told: Told, shape: str) -> None:
        self._told, self.model = told, make_llama(shape, told.device, _SPARE_GIB[shape])
        self._read, self._rate = bytes_per_step(self.model), _copied_per_s(told.device)
        self._per_token = sum(e.bytes_per_token for e in layer_shapes(self.model, told.device))
        row = {"read_per_step_gb": self._read / 1e9, "copied_gb_per_s": self._rate / 1e9}
        told.row(shape, {**row, "kv_kib_per_token": self._per_token / 1024})

    def run(self, who: str, clients: Sequence[int]) -> None:
        """A row for each number of clients, or what else there is to tell."""
        if who == "generate":
            self._padded(clients)
        elif who == "profile":
            with self._engine() as engine:
                told_steps(self._told, engine, sorted({clients[0], clients[len(clients) // 2]}))
        elif who == "memory":
            told_memory(self._told, self.model)
        else:
            asyncio.run(self._loops(who, clients))

    def _asked(self, clients: int, each: float, variant: int = 0) -> list[Asked]:
        """The requests of a level, no prompt like another level's."""
        least = 2 if self._told.is_cpu else 1
        number = max(int(each * max(clients, least)), 2 * clients)
        draw = random.Random(hash((clients, variant)))
        return list(islice(requests(draw, tiny=self._told.is_cpu), number))

    async def _loops(self, who: str, clients: Sequence[int]) -> None:
        """Other prompts before those that are timed: known ones are shared."""
        begun_s, is_ours = time.perf_counter(), who == OURS
        async with self._in_flight() if is_ours else _batching(self.model) as answer:
            print(f"    {who}: started in {time.perf_counter() - begun_s:.1f} s", flush=True)
            for number in clients:
                warm = self._asked(number, 2, variant=1)
                if is_ours:
                    await tokens_per_s(answer, number, warm)
                else:
                    few = warm[: max(1, number // 4)]
                    await asyncio.gather(*(answer(Asked(one.prompt, 2)) for one in few))
                asked = self._asked(number, _REQUESTS if is_ours else _FEW_REQUESTS)
                self._tell(who, number, await tokens_per_s(answer, number, asked))

    def _engine(self) -> AbstractContextManager[InFlightEngine]:
        most: dict[str, Any] = {"max_num_seqs": _MOST_CLIENTS, "max_model_len": _MOST_TOKENS}
        return engine_on(self.model, self._told.device, **most)

    @asynccontextmanager
    async def _in_flight(self) -> AsyncIterator[Answer]:
        """Our engine, in this event loop."""
        with self._engine() as ours:

            async def answer(asked: Asked) -> int:
                tokens: list[int] = await asyncio.wrap_future(submitted(ours, [asked])[0])
                return len(tokens)

            yield answer

    def _padded(self, clients: Sequence[int]) -> None:
        """The rate of batches of as many rows as there are clients, at most the tutorial's."""
        for rows in sorted({min(number, _PADDED_ROWS) for number in clients}):
            rate = padded_rate(self.model, self._asked(rows, 2)[:rows])
            self._tell("generate on a padded batch", rows, rate)

    def _tell(self, who: str, clients: int, rate: float) -> None:
        most = limit(self._asked(clients, _REQUESTS), clients, self._read, self._per_token)
        most *= self._rate
        row = {"useful_tokens_per_s": rate, "limit_tokens_per_s": most}
        self._told.row(f"{who}, {clients} clients", {**row, "of_the_limit_share": rate / most})


def requests(draw: random.Random, *, tiny: bool = False) -> Iterator[Asked]:
    """Endless ones, lengths uniform."""
    prompts, outputs = (_TINY_PROMPT, _TINY_OUTPUT) if tiny else (_PROMPT, _OUTPUT)
    while True:
        prompt = [draw.randint(_FIRST_ID, _LAST_ID) for _ in range(draw.randint(*prompts))]
        yield Asked(prompt, draw.randint(*outputs))


def limit(asked: Sequence[Asked], clients: int, weight_bytes: int, bytes_per_token: int) -> float:
    """The most tokens for each byte that is read: a step reads the weights, and the keys and values
    that its tokens attend to, as many on average as in these requests. Prompts are not counted.
    """
    attended = sum(one.max_tokens * (len(one.prompt) + (one.max_tokens + 1) / 2) for one in asked)
    context = attended / sum(one.max_tokens for one in asked)
    return clients / (weight_bytes + clients * context * bytes_per_token)


async def tokens_per_s(answer: Answer, clients: int, asked: Sequence[Asked]) -> float:
    """Useful tokens a second while all clients are busy: from when as many requests are answered as
    there are clients to when the last is sent. ``asked`` is three for each client, or more.

    Raises what a request was answered with, and RuntimeError for an answer of another length.
    """
    waiting, ended = iter(asked), []

    async def client() -> None:
        for request in waiting:
            found = await answer(request)
            if found != request.max_tokens:
                raise RuntimeError(f"{found} tokens came, {request.max_tokens} were asked for")
            ended.append((time.perf_counter(), found))

    await asyncio.gather(*(client() for _ in range(clients)))
    window = ended[clients - 1 : len(ended) - clients + 1]
    return sum(tokens for _, tokens in window[1:]) / (window[-1][0] - window[0][0])


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

    async def answer(asked: Asked) -> int:
        done: asyncio.Future[Any] = loop.create_future()
        name = f"request-{next(numbers)}"
        manager.register_result_handler(
            name, lambda result: None if done.done() else done.set_result(result)
        )
        manager.add_request(asked.prompt, request_id=name, max_new_tokens=asked.max_tokens)
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
def padded_rate(model: Any, asked: Sequence[Asked]) -> float:
    """Useful tokens/s of one batch: prompts padded to the longest, tokens drawn among the best ten,
    held until the longest answer ends. Beyond a batch, clients wait for each other.
    """
    longest = max(len(one.prompt) for one in asked)
    pads = [longest - len(one.prompt) for one in asked]
    ids = [[0] * pad + one.prompt for pad, one in zip(pads, asked, strict=True)]
    mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
    inputs, seen = (torch.tensor(numbers, device=model.device) for numbers in (ids, mask))
    options = {"attention_mask": seen, "do_sample": True, "top_k": 10, "pad_token_id": 0}
    for number in (2, max(one.max_tokens for one in asked)):  # the first for what is made once
        begun_s = time.perf_counter()
        model.generate(inputs, max_new_tokens=number, **options)
        wait(model.device)
    return sum(one.max_tokens for one in asked) / (time.perf_counter() - begun_s)


@torch.inference_mode()
def _copied_per_s(device: torch.device) -> float:
    """Bytes/s that a copy reads and writes."""
    size = _TINY_COPY_BYTES if device.type == "cpu" else _COPY_BYTES
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target, taken = torch.empty_like(source), []
    for _ in range(8):
        wait(device)
        begun_s = time.perf_counter()
        for _ in range(_COPIES):
            target.copy_(source)
        wait(device)
        taken.append((time.perf_counter() - begun_s) / _COPIES)
    return 2 * size / median(taken[1:])


def told_memory(told: Told, model: Any) -> None:
    """A stated budget, then the share of free memory that is taken where none is stated."""
    stated = _TINY_STATED_GIB if told.is_cpu else _STATED_GIB
    length, sequences = (64, 4) if told.is_cpu else (2048, 64)
    options: dict[str, Any] = {"max_model_len": length, "max_num_seqs": sequences}
    with told.case("kv_cache_gib is stated") as row:
        _measure(row, told, model, stated, {**options, "kv_cache_gib": stated})
    free = free_gib(told.device)
    per_token = sum(shape.bytes_per_token for shape in layer_shapes(model, told.device))
    most = int(free * FREE_SHARE["cuda"] * GIB) // (sequences * per_token) - 1
    longest = 128 if told.is_cpu else min(most, model.config.max_position_embeddings)
    with told.case("90 % of what is free") as row:
        _measure(row, told, model, free * FREE_SHARE["cuda"], {**options, "max_model_len": longest})


def _measure(
    row: dict[str, Any], told: Told, model: Any, budget_gib: float, options: dict[str, Any]
) -> None:
    """The engine started, its graphs captured; behind it all sequences at once, sampled from a flat
    distribution: the largest buffers a step has.
    """
    before = free_gib(told.device)
    with engine_on(model, told.device, **options) as engine:
        started, room = free_gib(told.device), engine.max_model_len
        sampling = {"temperature": 5.0, "top_p": 0.99, "seed": 0}
        for number, length in ((engine.max_num_seqs, 512), (1, 4096)):
            prompt = [2] * min(room // 2, length)
            answers(engine, [Asked(prompt, min(24, room // 4), sampling=sampling)] * number)
        # With what torch keeps for later still taken, as others see it.
        left = started if told.is_cpu else torch.cuda.mem_get_info(told.device)[0] / GIB
        size = engine.size
    kept = size.num_bytes / GIB
    row |= {"sequences": size.max_num_seqs, "max_model_len": size.max_model_len}
    row |= {"kv_cache_gib": kept, "budget_gib": budget_gib, "engine_gib": before - started}
    row |= {"left_gib": left, "least_gib": _LEAST_LEFT_GIB}
    row["agrees"] = kept <= budget_gib and left >= _LEAST_LEFT_GIB

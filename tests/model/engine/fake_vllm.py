"""A vLLM without a model: counts upwards from a prompt's last token, by vLLM's rules of ends."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Collection, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hf_triton.runtime.errors import LoadError
from hf_triton.text_generation.engines.vllm.arguments import AdapterFile
from hf_triton.text_generation.engines.vllm.client import Count
from hf_triton.text_generation.engines.vllm.sampling import sampling_arguments
from hf_triton.text_generation.sequence.sequence import Sequence

VOCAB_SIZE = 97
CONTEXT = 128
INTERVAL = 4


@dataclass
class FakeVllm:
    """``held_after`` keeps each request from the token after so many of its own until it is
    ``opened``, ``gives_up`` ends each at its first; ``closed`` are those that were ended before
    vLLM was done with them.
    """

    name: str = "vLLM 0"
    max_model_len: int = CONTEXT
    max_num_seqs: int = 2
    num_cache_tokens: int = 1024
    is_dead: bool = False
    held_after: int | None = None
    entered: threading.Event = field(default_factory=threading.Event)  # a request is held
    opened: threading.Event = field(default_factory=threading.Event)
    num_calls: int = 0
    gives_up: bool = False
    is_changing: bool = False  # keeps a change of adapters from its end
    is_shut_down: bool = False
    error: Exception | None = None
    closed: list[Sequence] = field(default_factory=list)
    count: Count = lambda *_: None
    told: list[int] = field(default_factory=list)  # tokens of each output
    adapter_keys: dict[str, int] = field(default_factory=dict)
    removed_adapters: set[int] = field(default_factory=set)
    used_adapters: list[int] = field(default_factory=list)  # of each request

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    async def start(self, count: Count) -> FakeVllm:
        """Starts the fake for an engine."""
        self.count = count
        self._places = asyncio.Semaphore(self.max_num_seqs)
        return self

    def shutdown(self) -> None:
        self.is_shut_down = True

    async def read(self, wanted: Iterable[AdapterFile]) -> dict[str, int]:
        """One that is called ``bad`` is refused."""
        await asyncio.sleep(0.01)
        while self.is_changing:
            await asyncio.sleep(0.01)
        names = [one.adapter.name for one in wanted]
        if "bad" in names:
            raise LoadError("adapter bad: vLLM refuses it")
        return {name: self.adapter_keys.get(name) or next(self._numbers) for name in names}

    def name_adapters(self, keys: dict[str, int]) -> None:
        self.removed_adapters |= set(self.adapter_keys.values()) - set(keys.values())
        self.adapter_keys.clear()
        self.adapter_keys.update(keys)

    async def forget(self, used: Collection[int]) -> None:
        self.removed_adapters &= set(used)

    async def generate(
        self, sequence: Sequence, *, each_token: bool, eos_token_ids: frozenset[int]
    ) -> AsyncGenerator[Any, None]:
        asked = sampling_arguments(sequence.params, eos_token_ids)
        interval = 1 if each_token else INTERVAL
        finished = False
        self.used_adapters.append(sequence.adapter_key)
        try:
            async with self._places:
                waiting: list[int] = []
                for number in range(asked["max_tokens"]):
                    token = (sequence.prompt_token_ids[-1] + 1 + number) % VOCAB_SIZE
                    await self._computed(number)
                    waiting.append(token)
                    reason = "error" if self.gives_up else _reason(asked, number + 1, token)
                    finished = reason is not None
                    if finished or not number or len(waiting) >= interval:
                        self.told.append(len(waiting))
                        output = _output(waiting, reason, asked["logprobs"])
                        if not number and asked["prompt_logprobs"] is not None:
                            output.prompt_logprobs = _prompt(sequence, asked["prompt_logprobs"])
                        yield output
                        waiting = []
                    if finished:
                        return
        finally:
            if not finished:
                self.closed.append(sequence)

    async def _computed(self, number: int) -> None:
        await asyncio.sleep(0.0005)
        self.num_calls += 1
        while number == self.held_after and not (self.opened.is_set() or self.is_dead):
            self.entered.set()
            await asyncio.sleep(0.005)
        if self.is_dead:
            raise ConnectionError("the engine's process is gone")
        if self.error is not None:
            raise self.error
        self.count(1, 1, 0.5)


def _reason(asked: dict[str, Any], num_tokens: int, token: int) -> str | None:
    if num_tokens >= asked["min_tokens"] and token in asked["stop_token_ids"]:
        return "stop"
    return "length" if num_tokens == asked["max_tokens"] else None


def _output(token_ids: list[int], reason: str | None, num_logprobs: int | None) -> Any:
    logprobs = None
    if num_logprobs is not None:
        logprobs = [logprobs_of(token, num_logprobs) for token in token_ids]
    completion = SimpleNamespace(token_ids=list(token_ids), logprobs=logprobs, finish_reason=reason)
    metrics = SimpleNamespace(queued_ts=1.0, scheduled_ts=1.5)
    return SimpleNamespace(outputs=[completion], finished=reason is not None, metrics=metrics)


def _prompt(sequence: Sequence, num: int) -> list[dict[int, Any] | None]:
    return [None, *(logprobs_of(token_id, num) for token_id in sequence.prompt_token_ids[1:])]


def logprobs_of(token_id: int, num: int) -> dict[int, Any]:
    """The sampled token is the second likeliest; those after it are its next numbers."""
    found = {token_id: SimpleNamespace(logprob=-1.0, rank=2)}
    for rank in range(1, num + 1):
        if rank != 2:
            found[(token_id + rank) % VOCAB_SIZE] = SimpleNamespace(logprob=-rank / 2, rank=rank)
    return found

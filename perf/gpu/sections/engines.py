"""Our in-flight engine on a model that is there already: made by the product's own code, without
files, tokenizer or server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from hf_runtime.devices.cuda_capture import Replay
from hf_runtime.devices.device import Placement
from text_generation.in_flight import engine as in_flight
from text_generation.in_flight import runner_selection, storage
from text_generation.in_flight.engine import InFlightEngine
from text_generation.kv.kv_cache import KVCache
from text_generation.loading import ModelParts, start_engine
from text_generation.lora.linear import Adapters
from text_generation.options import Options
from text_generation.runners.cuda_graphs import GraphedRunner
from text_generation.sequence.detokenizer import Detokenizer
from text_generation.sequence.sampling_params import SamplingParams
from text_generation.sequence.sequence import Sequence, Update

_ANSWER_TIMEOUT_S = 300.0


class _NoTokenizer:
    """The engine asks for the end of texts only."""

    eos_token_id = None


@dataclass(frozen=True)
class Asked:
    """A prompt, how many tokens are asked for, by which adapter; greedy but for ``sampling``."""

    prompt: list[int]
    max_tokens: int
    adapter: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


class _Caller:
    """Gives a future one sequence's tokens, or what it was answered with."""

    streams = False
    request_id = ""

    def __init__(self) -> None:
        self.future: Future[list[int]] = Future()

    def take(self, update: Update) -> None:
        if update.error is not None:
            self.fail(update.error)
        elif update.finish_reason is not None:
            self.future.set_result([token.id for token in update.tokens])

    def flush(self) -> None:
        """Nothing is sent."""

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def futures(engine: InFlightEngine, asked: Items[Asked]) -> list[Future[list[int]]]:
    """The tokens of each, all submitted at once."""
    callers = [_Caller() for _ in asked]
    engine.submit(
        [
            Sequence(
                one.prompt,
                SamplingParams(max_tokens=one.max_tokens, **one.sampling),
                caller,
                Detokenizer(None, one.prompt),
                lora_name=one.adapter,
            )
            for one, caller in zip(asked, callers, strict=True)
        ]
    )
    return [caller.future for caller in callers]


def answers(engine: InFlightEngine, asked: Items[Asked]) -> list[list[int]]:
    """Waits for them. Raises what one was answered with, or TimeoutError."""
    return [future.result(_ANSWER_TIMEOUT_S) for future in futures(engine, asked)]


async def submit(engine: InFlightEngine, asked: Asked) -> list[int]:
    """The same in an event loop, for one."""
    return await asyncio.wrap_future(futures(engine, [asked])[0])


@contextmanager
def engine_on(
    model: Any, device: torch.device, adapters: Adapters | None = None, **options: Any
) -> Iterator[InFlightEngine]:
    """The engine with these options, graphs captured; on a CPU a "replay" runs again, so that all
    code but CUDA's is the same.
    """
    parts = ModelParts(model.config, _NoTokenizer(), model)
    own_attention = model.config._attn_implementation  # noqa: SLF001
    placement = Placement(str(device), {"": str(device)})
    asked = Options(engine="in_flight", **options)
    with _graphs_on_cpu() if device.type == "cpu" else nullcontext():
        engine = start_engine("perf.gpu", parts, asked, placement, num_threads=1, adapters=adapters)
    assert isinstance(engine, InFlightEngine)
    try:
        yield engine
    finally:
        engine.stop()
        # What an engine sets works inside of it only.
        if model.config._attn_implementation != own_attention:  # noqa: SLF001
            model.set_attn_implementation(own_attention)


def graphed_runner(engine: InFlightEngine) -> GraphedRunner:
    """The engine's runner. Raises RuntimeError where the model could not be captured."""
    runner = engine.runner
    if not isinstance(runner, GraphedRunner):
        raise RuntimeError(f"no CUDA graphs: the engine runs {runner.name}")
    return runner


def run_again(run: Callable[[], torch.Tensor]) -> Replay:
    """What stands for a captured graph on a CPU."""
    return run


@contextmanager
def _graphs_on_cpu() -> Iterator[None]:
    def with_graphs(runner: Any, _: torch.device) -> GraphedRunner:
        graphed = GraphedRunner(runner, run_again)
        graphed.warm_up()
        return graphed

    def with_spare_column(shapes: Any, size: Any, _: int) -> KVCache:
        return KVCache(shapes, size, 1)

    with (
        patch.object(in_flight, "with_cuda_graphs", with_graphs),
        patch.object(storage, "KVCache", with_spare_column),
        patch.object(
            runner_selection, "_fits_fused", lambda *_: False
        ),  # a GPU's runner is the packed one
    ):
        yield

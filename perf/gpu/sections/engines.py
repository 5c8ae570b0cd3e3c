"""Our in-flight engine on a model that is there already: made by the product's own code, without
files, tokenizer or server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from hf_runtime.devices.cuda_capture import Replay
from hf_runtime.devices.device import Placement
from text_generation.engine.scheduler import Step
from text_generation.in_flight import engine as in_flight
from text_generation.in_flight import runner_selection, storage
from text_generation.in_flight.engine import InFlightEngine
from text_generation.kv.kv_cache import KVCache
from text_generation.loading import ModelParts, start_engine
from text_generation.options import Options
from text_generation.runners.cuda_graphs import GraphedRunner
from text_generation.sequence.detokenizer import Detokenizer
from text_generation.sequence.sampling_params import SamplingParams
from text_generation.sequence.sequence import Sequence, Update

_ANSWER_TIMEOUT_S = 300.0


class _NoTokenizer:
    """The engine asks for the end of texts only."""

    eos_token_id = None


class Clients:
    """Each sends its next prompt when its last is answered; counts tokens.

    ``prompts`` are the length and the parameters of each, in tokens.
    """

    streams = False
    request_id = ""

    def __init__(
        self, engine: InFlightEngine, prompts: Iterator[tuple[int, SamplingParams]]
    ) -> None:
        self.num_tokens = 0
        self._engine, self._prompts = engine, enumerate(prompts)
        self._num_open = 0
        self._failure: Exception | None = None
        self._done = threading.Event()

    def run(self, number: int) -> None:
        """Returns when all is sent and answered. Raises what one of them was answered with."""
        self._num_open = number
        self._engine.submit([sequence for _ in range(number) for sequence in self._next()])
        if not self._done.wait(_ANSWER_TIMEOUT_S):
            raise TimeoutError(f"{self._num_open} unanswered in {_ANSWER_TIMEOUT_S:g} s")
        if self._failure is not None:
            raise self._failure

    def take(self, update: Update) -> None:
        if update.error is not None:
            self.fail(update.error)
        elif update.finish_reason is not None:
            self.num_tokens += len(update.tokens)
            if following := self._next():
                self._engine.submit(following)

    def flush(self) -> None:
        """Nothing is sent."""

    def fail(self, error: Exception) -> None:
        self._failure = error
        self._done.set()

    def _next(self) -> list[Sequence]:
        for index, (length, params) in self._prompts:
            prompt = [2 + (index + i) % 1000 for i in range(length)]
            return [Sequence(prompt, params, self, Detokenizer(None, prompt))]
        self._num_open -= 1
        if not self._num_open:
            self._done.set()
        return []


def generate(
    engine: InFlightEngine, number: int, num_prompt_tokens: int, params: SamplingParams
) -> None:
    """Returns when ``number`` sequences, submitted at once, are finished."""
    Clients(engine, iter([(num_prompt_tokens, params)] * number)).run(number)


class TimedRunner:
    """Notes when each step begins and how many sequences it decodes; 0 where it has prompts."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.cache, self.name = inner, inner.cache, inner.name
        self.begun: list[tuple[float, int]] = []

    def forward(self, step: Step) -> torch.Tensor:
        num_decodes = 0 if step.prefills else len(step.decodes)
        self.begun.append((time.perf_counter(), num_decodes))
        logits: torch.Tensor = self.inner.forward(step)
        return logits

    def step_s(self, num_sequences: int) -> float:
        """Mean seconds from one step of so many decodes to the next, all that lies between."""
        times = [at for at, number in self.begun if number == num_sequences]
        if len(times) < 3:
            raise RuntimeError(f"only {len(times)} steps decoded {num_sequences} sequences")
        return (times[-1] - times[1]) / (len(times) - 2)


@contextmanager
def timed(engine: InFlightEngine) -> Iterator[TimedRunner]:
    """The engine's steps are noted inside the block."""
    inner = engine.runner
    runner = TimedRunner(inner)
    engine.runner = runner
    yield runner
    engine.runner = inner


@contextmanager
def engine_on(model: Any, device: torch.device, **options: Any) -> Iterator[InFlightEngine]:
    """The engine with these options, graphs captured; on a CPU a "replay" runs again, so that all
    code but CUDA's is the same.
    """
    parts = ModelParts(model.config, _NoTokenizer(), model)
    placement = Placement(str(device), {"": str(device)})
    asked = Options(engine="in_flight", **options)
    with _graphs_on_cpu() if device.type == "cpu" else nullcontext():
        engine = start_engine("perf.gpu", parts, asked, placement, num_threads=1)
    assert isinstance(engine, InFlightEngine)
    try:
        yield engine
    finally:
        engine.stop()
        model.set_attn_implementation("sdpa")  # what an engine sets works inside of it only


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

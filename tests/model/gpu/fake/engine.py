"""The real in-flight engine on the GPU that is not there, stepped in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from accelerate import init_empty_weights

from hf_triton.runtime.devices.device import free_bytes
from hf_triton.runtime.fused.parts import Linear
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.engines.in_flight import trial
from hf_triton.text_generation.engines.in_flight.engine import InFlightEngine
from hf_triton.text_generation.forward.fused.decoder import Decoder
from hf_triton.text_generation.forward.fused.reading import read_decoder
from hf_triton.text_generation.forward.gpu import runner as gpu_runner
from hf_triton.text_generation.lora.linear import Adapters, with_adapters, without_adapters
from hf_triton.text_generation.options import Options
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence, Update
from tests.model.gpu.fake.events import Log
from tests.model.gpu.fake.gpu import FakeGpu

# Few sizes to capture: 1, 2 and 4 decodes, and 16 tokens with chunks among them.
SMALL: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 60, "max_num_batched_tokens": 16}
_STD = 0.02  # of random weights, as transformers has it
_UNTIL_STEADY = 3  # steps after the prompts': an engine may be a step ahead of what it has read


class FakeEngine:
    """The engine, prepared, and the GPU it is on. Its thread does not run."""

    def __init__(self, gpu: FakeGpu, setup: EngineSetup) -> None:
        self.gpu = gpu
        self.engine = InFlightEngine(setup)
        self._nobody = _Nobody()

    def sequence(self, num_prompt_tokens: int, **params: Any) -> Sequence:
        """A sequence of that many tokens, and more of them asked than a test steps."""
        prompt = [1 + number % 50 for number in range(num_prompt_tokens)]
        sampling = SamplingParams(**{"max_tokens": 40, **params})
        return Sequence(prompt, sampling, self._nobody, Detokenizer(None, prompt))

    def step(self, *submitted: Sequence) -> Log:
        """Runs one step, with these submitted before -> what it asked for.

        Raises:
            Exception: what failed a sequence.
        """
        if submitted:
            self.engine.submit(list(submitted))
        self.engine.thread.take_in()
        self.gpu.log.clear()
        self.engine.step()
        for error in self._nobody.errors:
            raise error
        return Log(self.gpu.log)

    def decode_step(self, *running: Sequence) -> Log:
        """What a step of these asks for when all of them decode and steps follow each other."""
        self.step(*running)
        while not all(sequence.token_ids for sequence in running):
            self.step()
        for _ in range(_UNTIL_STEADY):
            log = self.step()
        self.end(*running)
        return log

    def end(self, *running: Sequence) -> None:
        """Ends sequences, so that others find the engine empty."""
        self.engine.cancel(running)
        self.engine.thread.take_in()
        assert self.engine.num_unfinished == 0


class _Nobody:
    """A recipient that wants nothing and keeps what it is failed with."""

    streams = False
    request_id = ""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def take(self, update: Update) -> None:
        """Nothing is done with it."""

    def flush(self) -> None:
        """Nothing was kept."""

    def fail(self, error: Exception) -> None:
        self.errors.append(error)


def _own_logits(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, forced: list[list[int]]
) -> torch.Tensor:
    """In place of what ``generate`` computes, which looks at values to see when it is done: logits
    without values agree with any. Which runner holds a model is for tests on the CPU.
    """
    vocab_size = model.config.get_text_config().vocab_size
    return torch.empty(len(forced), len(forced[0]) + 1, vocab_size, device=input_ids.device)


def _with_values(model: Any) -> Any:
    """A model of the same configuration on the CPU. Its weights are stretches of the same random
    numbers, each from a place of its own, so that billions of them fit; vectors are about 1, as
    norms are.
    """
    with init_empty_weights(include_buffers=False):
        twin = type(model)(model.config).eval()
    weights = [
        (m, name, w) for m in twin.modules() for name, w in m.named_parameters(recurse=False)
    ]
    size = max(weight.numel() for _, _, weight in weights) + len(weights)
    numbers = torch.randn(size, dtype=model.dtype) * _STD
    for place, (module, name, weight) in enumerate(weights):
        own = numbers[place : place + weight.numel()].view(weight.shape)
        own = own + 1 if weight.dim() == 1 else own
        setattr(module, name, torch.nn.Parameter(own, requires_grad=False))
    return twin


def _read_decoder(model: Any, max_model_len: int, join: Callable[..., Linear]) -> Decoder:
    """What is read off a recorded forward, which has to have values: that of a model like this one
    on the CPU, with this one's modules in the place of that one's.
    """
    twin = _with_values(model)
    names = {id(module): name for name, module in twin.named_modules()}
    modules, moved = dict(model.named_modules()), dict[int, Any]()

    def join_own(*parts: Any) -> Linear:
        own = [modules[names[id(part)]] for part in parts]
        return with_adapters(join(*map(without_adapters, own)), own)

    def of_model(value: Any) -> Any:
        if isinstance(value, torch.nn.Module):
            return modules[names[id(value)]]
        if isinstance(value, torch.Tensor):
            return value.to(model.device)
        if isinstance(value, list):
            return [of_model(item) for item in value]
        if not is_dataclass(value) or isinstance(value, type):
            return value
        if id(value) not in moved:
            parts = {part.name: of_model(getattr(value, part.name)) for part in fields(value)}
            moved[id(value)] = replace(value, **parts)
        return moved[id(value)]

    decoder: Decoder = of_model(read_decoder(twin, max_model_len, join_own))
    return decoder


@contextmanager
def engine_on(
    gpu: FakeGpu, model: Any, adapters: Adapters | None = None, **options: Any
) -> Iterator[FakeEngine]:
    """An engine for the model, prepared; the log of the GPU has what preparing it asked for."""
    setup = EngineSetup(
        model=model,
        options=Options(engine="in_flight", **{**SMALL, **options}),
        device=torch.device("cuda:0"),
        eos_token_ids=frozenset(),
        num_threads=1,
        free_bytes=free_bytes,
        prepare=lambda model: None,
        adapters=adapters,
    )
    fake = FakeEngine(gpu, setup)
    try:
        with (
            patch.object(trial, "own_logits", _own_logits),
            patch.object(gpu_runner, "read_decoder", _read_decoder),
        ):
            fake.engine.prepare()
        yield fake
    finally:
        fake.engine._delivery.stop()

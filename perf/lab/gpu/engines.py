"""Our in-flight engine on a model that is there already: made by the product's own code, without
files, tokenizer or server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from hf_triton.runtime.devices.device import free_bytes
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.engines.in_flight.engine import InFlightEngine
from hf_triton.text_generation.lora.linear import Adapters
from hf_triton.text_generation.options import Options
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence, Update

_ANSWER_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Asked:
    """A prompt, how many tokens are asked for, by which adapter; greedy but for ``sampling``."""

    prompt: list[int]
    max_tokens: int
    adapter: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def sequence(self, caller: Any) -> Sequence:
        params = SamplingParams(max_tokens=self.max_tokens, **self.sampling)
        text = Detokenizer(None, self.prompt)
        return Sequence(self.prompt, params, caller, text, lora_name=self.adapter)


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


def submitted(engine: InFlightEngine, asked: Items[Asked]) -> list[Future[list[int]]]:
    """The tokens of each, all submitted at once."""
    callers = [_Caller() for _ in asked]
    pairs = zip(asked, callers, strict=True)
    engine.submit([one.sequence(caller) for one, caller in pairs])
    return [caller.future for caller in callers]


def answers(engine: InFlightEngine, asked: Items[Asked]) -> list[list[int]]:
    """Waits for them. Raises what one was answered with, or TimeoutError."""
    return [future.result(_ANSWER_TIMEOUT_S) for future in submitted(engine, asked)]


@contextmanager
def engine_on(
    model: Any,
    device: torch.device,
    *,
    adapters: Adapters | None = None,
    paged: bool = True,
    async_scheduling: bool = True,
    **options: Any,
) -> Iterator[InFlightEngine]:
    """The engine with these options; with pages and a step ahead on a CPU, too."""
    own_attention = model.config._attn_implementation  # noqa: SLF001
    engine = InFlightEngine(
        EngineSetup(
            model=model,
            options=Options(engine="in_flight", **options),
            device=device,
            eos_token_ids=frozenset(),
            num_threads=1,
            free_bytes=free_bytes,
            prepare=lambda _: None,
            adapters=adapters,
            paged=paged,
            async_scheduling=async_scheduling,
        )
    )
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
        # What an engine sets works inside of it only.
        if model.config._attn_implementation != own_attention:  # noqa: SLF001
            model.set_attn_implementation(own_attention)

"""Computes waiting encodings in batches. Knows neither Triton nor the meaning of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hf_triton.runtime.engine.work_engine import WorkEngine
from hf_triton.runtime.errors import NO_NUMBERS, EngineError, reason

from ..runners.encoder_runner import Runner
from ..texts.encoding import Encoding

# Sending an answer takes as long, most of it waiting for the server.
SEND_S = 0.0003

Array = npt.NDArray[Any]
Reduce = Callable[
    [Sequence[torch.Tensor], Sequence[Encoding]], Sequence[torch.Tensor] | torch.Tensor
]


class EncoderEngine(WorkEngine):
    """``make_runner`` is called on the engine's thread; ``reduce`` is the task's."""

    def __init__(
        self,
        make_runner: Callable[[], Runner],
        reduce: Reduce,
        *,
        max_num_batched_tokens: int,
        **more: Any,
    ) -> None:
        """``more`` as of WorkEngine."""
        super().__init__("encoder", max_num_batched_tokens, **more)
        self._make_runner, self.reduce = make_runner, reduce

    def prepare(self) -> None:
        self.runner = self._make_runner()

    def size(self, item: Encoding) -> int:
        return len(item)

    def compute(self, items: Sequence[Encoding]) -> list[Array | EngineError]:
        """Texts with NaN are repeated alone, because a mask hides no NaN."""
        found = self._computed(items)
        if len(items) > 1:
            found = [
                one if one[1] else self._computed([item])[0]
                for one, item in zip(found, items, strict=True)
            ]
        return [array if is_finite else EngineError(NO_NUMBERS) for array, is_finite in found]

    def failure(self, item: Encoding, error: BaseException) -> EngineError:
        return EngineError(f"computing failed: {type(error).__name__}: {reason(error)}")

    def computed(self, items: Sequence[Encoding], cpu_s: float) -> None:
        num_tokens = sum(map(len, items))
        self.metrics.num_tokens += num_tokens
        self.metrics.batch_tokens.observe(num_tokens)
        # It sends a single answer, and those of a step that took less time than sending will. A
        # sender thread would then take the interpreter lock from the thread that reads requests,
        # and fewer of them would be computed together.
        self.thread.take_in()
        is_alone = len(items) == 1 and not self.has_work()
        self.sends_itself = is_alone or cpu_s < len(items) * SEND_S

    @torch.inference_mode()
    def _computed(self, encodings: Sequence[Encoding]) -> list[tuple[Array, bool]]:
        """A float32 array for each encoding, and whether all of its numbers are finite."""
        reduced = self.reduce(self.runner.forward(encodings), encodings)
        assert len(reduced) == len(encodings), "a task's reduce keeps one of each"
        if reduced[0].device.type == "cpu" and self.runner.follows_threads:
            self.thread.cpu_threads.computes(sum(map(len, encodings)))
        if isinstance(reduced, torch.Tensor):
            rows = reduced.float().cpu().numpy()
            return list(zip(rows, np.isfinite(rows).all(axis=-1).tolist(), strict=True))
        return [(part, bool(np.isfinite(part).all())) for part in _arrays(reduced)]


def _arrays(parts: Sequence[torch.Tensor]) -> list[Array]:
    """The outputs as float32 on the CPU, copied from a GPU at once."""
    if parts[0].device.type != "cpu":
        shapes = [part.shape for part in parts]
        flat = torch.cat([part.reshape(-1) for part in parts]).float().cpu()
        flats = flat.split([shape.numel() for shape in shapes])
        parts = [part.view(shape) for part, shape in zip(flats, shapes, strict=True)]
    return [part.float().numpy() for part in parts]

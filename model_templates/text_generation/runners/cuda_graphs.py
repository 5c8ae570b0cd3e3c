"""Decode steps replayed as CUDA graphs: one launch a step instead of hundreds.

A graph has fixed shapes, so one is captured for each bucket of sequence count and cache length, and
a step runs in the smallest bucket that is large enough. Padding rows write to a spare column of the
cache, and their logits are dropped. Steps with prompts run eagerly. A model that can't be captured
(data-dependent shapes, layers on several GPUs) always runs eagerly; the log says so once.

See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hf_runtime.devices.cuda_capture import Capture, Replay, capture_on_stream
from hf_runtime.devices.device import devices_of
from hf_runtime.errors import reason
from hf_runtime.log import warn

from ..engine.scheduler import Step
from .packed_attention import PackedStep
from .packed_runner import PackedRunner

_SMALLEST_LENGTH = 256
_ROW_STEP = 16
_TOLERANCE = 3e-2  # of the logits' range; the same kernels run, so logits should be equal


def with_cuda_graphs(runner: Any, device: torch.device) -> Any:
    """The runner with its decode steps under CUDA graphs where that is possible, else the runner
    itself.
    """
    if device.type != "cuda" or not isinstance(runner, PackedRunner):
        return runner
    if len(devices_of(runner.model)) > 1:
        return runner
    graphed = GraphedRunner(runner, capture_on_stream(device))
    graphed.warm_up()
    return graphed


class GraphedRunner:
    """A packed runner whose decode steps replay what ``capture`` recorded."""

    def __init__(self, inner: PackedRunner, capture: Capture) -> None:
        self.inner = inner
        self.cache = inner.cache
        self.name = f"{inner.name}, CUDA graphs"
        self._capture = capture
        self._spare_column = inner.cache.size.max_model_len
        self._row_buckets = row_buckets(inner.cache.size.num_slots)
        self._length_buckets = length_buckets(inner.cache.size.max_model_len)
        self._captured: dict[tuple[int, int], tuple[torch.Tensor, Replay]] = {}

    @property
    def num_graphs(self) -> int:
        """How many buckets are captured; 0 where the model can't be."""
        return len(self._captured)

    def warm_up(self, num_lengths: int = 1) -> None:
        """Captures every sequence count at the shortest length, or the ``num_lengths`` shortest;
        longer ones are captured when first needed.

        The largest first: smaller ones find room in the memory that it took, not the other way.
        """
        for length in reversed(self._length_buckets[:num_lengths]):
            for rows in reversed(self._row_buckets):
                self._graph(rows, length)

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_sampled, vocab) in the order of ``step.sampled``."""
        if step.prefills or not step.decodes:
            return self.inner.forward(step)
        num_rows = len(step.decodes)
        columns = [sequence.num_computed_tokens - 1 for sequence in step.decodes]
        rows = next(bucket for bucket in self._row_buckets if bucket >= num_rows)
        length = next(bucket for bucket in self._length_buckets if bucket > max(columns))
        captured = self._graph(rows, length)
        if captured is None:
            return self.inner.forward(step)
        inputs, replay = captured
        num_padding = rows - num_rows
        inputs.copy_(
            torch.tensor(
                [
                    [sequence.last_token_id for sequence in step.decodes] + [0] * num_padding,
                    columns + [0] * num_padding,
                    columns + [self._spare_column] * num_padding,
                ]
            )
        )
        return replay()[:num_rows]

    def _graph(self, rows: int, length: int) -> tuple[torch.Tensor, Replay] | None:
        """A bucket's inputs, (3, rows) int64 (token ids, positions, columns), and its replay."""
        if self._capture is _never:
            return None
        if (rows, length) not in self._captured:
            try:
                self._captured[rows, length] = self._record(rows, length)
            except Exception as error:
                # Not every model can be captured; eager decoding is always right.
                warn(f"decoding without CUDA graphs: {type(error).__name__}: {reason(error)}")
                self._capture = _never
                return None
        return self._captured[rows, length]

    @torch.inference_mode()
    def _record(self, rows: int, length: int) -> tuple[torch.Tensor, Replay]:
        device = self.inner.device
        inputs = torch.zeros(3, rows, dtype=torch.int64, device=device)
        inputs[2] = self._spare_column
        slots = torch.arange(rows, device=device)

        def run() -> torch.Tensor:
            step = PackedStep(
                self.cache, slots, inputs[1], inputs[2], num_decodes=rows, max_len=length
            )
            return self.inner.run(inputs[0], step, slots)

        replay = self._capture(run)
        _check_replay(replay, run)
        return inputs, replay


def _check_replay(replay: Replay, run: Callable[[], torch.Tensor]) -> None:
    """Raises RuntimeError where a replay gives other logits than running eagerly: what a model
    launches on another stream is not in the graph, and CUDA reports no error for it.
    """
    expected = run().float()
    span = (expected.max() - expected.min()).clamp_min(1e-6)
    difference = float(((replay().float() - expected).abs().max() / span).item())
    if not difference <= _TOLERANCE:  # NaN neither
        raise RuntimeError(f"a replayed step's logits differ by {difference:.2g} of their range")


def _never(run: Callable[[], torch.Tensor]) -> Replay:
    raise NotImplementedError


def row_buckets(num_slots: int) -> list[int]:
    """1, 2, 4, 8, then every 16th up to the number of slots: at most half of a small step is
    padding.
    """
    steps = [1, 2, 4, 8, *range(_ROW_STEP, num_slots, _ROW_STEP)]
    return [rows for rows in steps if rows < num_slots] + [num_slots]


def length_buckets(max_model_len: int) -> list[int]:
    """Doubling from 256 tokens to the longest sequence."""
    buckets, length = [], _SMALLEST_LENGTH
    while length < max_model_len:
        buckets.append(length)
        length *= 2
    return [*buckets, max_model_len]

"""Replays steps that only decode as CUDA graphs: one launch a step instead of hundreds.

A graph has fixed shapes, so one is captured for each of several batch sizes. A step runs in the
smallest graph that holds it, padded with sequences of one token in page 0. Steps with prompts or
drafts run eagerly: most take the device longer than the host takes to launch them. All graphs are
captured at load, the largest first, so that the others reuse its memory.

See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable

import torch

from hf_triton.runtime.devices.cuda_capture import (
    Capture,
    Replay,
    capture_each,
    capture_on_stream,
)
from hf_triton.runtime.devices.device import devices_of
from hf_triton.runtime.log import info
from hf_triton.text_generation.engine.step import Step

from ..transformers.transformers_runner import Runner
from .page_runner import PageRunner
from .step import PagedStep, StepShape, lay_out_pages

MOST_SEQS = 512
_TOLERANCE = 3e-2  # of the logits' range; the same kernels run, so logits should be equal


def with_cuda_graphs(runner: Runner, device: torch.device) -> Runner:
    """The runner with CUDA graphs for its decodes; the runner itself if none can be captured."""
    if device.type != "cuda" or not isinstance(runner, PageRunner):
        return runner
    if len(devices_of(runner.model)) > 1:
        return runner
    graphed = GraphedRunner(runner, capture_on_stream(device))
    graphed.capture_all()
    return graphed if graphed.num_graphs else runner


class GraphedRunner(Runner):
    def __init__(self, inner: PageRunner, capture: Capture) -> None:
        self.inner, self.cache, self.device = inner, inner.cache, inner.device
        self.name = f"{inner.name}, CUDA graphs"
        self._capture = capture
        self._sizes = batch_sizes(min(self.cache.size.max_num_seqs, MOST_SEQS))
        self._graphs: dict[int, tuple[StepShape, Replay]] = {}
        num_numbers = sum(self._shape(self._sizes[-1]).sizes.values())
        self._buffer = torch.zeros(num_numbers, dtype=torch.int32, device=inner.device)
        self._logits = torch.empty(0)  # all graphs write here

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def capture_all(self) -> None:
        began_s = time.monotonic()
        self._graphs = capture_each(self._sizes[::-1], self._record, "all steps")
        if self._graphs:
            info(f"captured {self.num_graphs} CUDA graphs in {time.monotonic() - began_s:.1f} s")
        self._sizes = sorted(self._graphs)

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """-> logits (num_rows, vocab), overwritten by the next step's."""
        index = bisect_left(self._sizes, len(step.decodes))  # of the smallest size that holds them
        if step.prefills or step.drafts or index == len(self._sizes):
            return self.inner.forward(step)
        shape, replay = self._graphs[self._sizes[index]]
        lay_out_pages(step, self.cache, self.device, shape, into=self._buffer)
        return replay()[: len(step.all_rows)]

    def _shape(self, num_seqs: int) -> StepShape:
        return StepShape(num_seqs, num_seqs, num_seqs, self.cache.size.most_pages)

    @torch.inference_mode()
    def _record(self, num_seqs: int) -> tuple[StepShape, Replay]:
        shape = self._shape(num_seqs)
        self._buffer.zero_()
        parts = shape.views(self._buffer)
        parts["starts"].copy_(torch.arange(num_seqs + 1))
        parts["key_starts"].copy_(torch.arange(num_seqs + 1))
        parts["lengths"].fill_(1)
        parts["last"].copy_(torch.arange(num_seqs))

        def run() -> torch.Tensor:
            step = PagedStep(self.cache, **shape.views(self._buffer), max_query_len=1)
            logits: torch.Tensor = self.inner.run(step)
            if not len(self._logits):
                self._logits = torch.empty_like(logits)
            return self._logits[: len(logits)].copy_(logits)

        replay = self._capture(run)
        _check_replay(replay, run)
        return shape, replay


def batch_sizes(most: int) -> list[int]:
    """1, 2, 4, 8, then powers of two and the numbers halfway between, up to ``most``: so at most a
    third of a larger graph is padding.
    """
    sizes, power = [1, 2, 4, 8], 16
    while power < most:
        sizes += [power, power * 3 // 2]
        power *= 2
    return [size for size in sizes if size < most] + [most]


def _check_replay(replay: Replay, run: Callable[[], torch.Tensor]) -> None:
    """Raises RuntimeError if a replay's logits differ. They do if a model launches kernels on
    another stream: the graph lacks those, and CUDA reports no error.
    """
    expected = run().to(torch.float32, copy=True)
    span = (expected.max() - expected.min()).clamp_min(1e-6)
    difference = float(((replay().float() - expected).abs().max() / span).item())
    if not difference <= _TOLERANCE:  # `not <=`, so that NaN fails too
        raise RuntimeError(f"a replayed step's logits differ by {difference:.2g} of their range")

"""Short batches on a GPU as CUDA graphs: one launch instead of one for every operation.

A graph has fixed shapes, so it is captured for buckets of length and of batch size, when a shape is
first needed, and a batch runs in the smallest bucket that holds it. Batches with more tokens than a
launch can hide behind run eagerly, padded and cut by length like the graphed ones.

See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hf_runtime.devices.cuda_capture import Capture, Replay, capture_on_stream
from hf_runtime.errors import reason
from hf_runtime.log import warn

from ..texts.encoding import Encoding
from .padded_runner import PaddedRunner
from .runner import RunnerSetup

# A bucket is at most half as long again as the texts in it: attention's time grows with the square
# of the length.
LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
# Beyond so many tokens the GPU computes a layer for longer than the CPU takes to launch it, so a
# graph gains nothing.
MAX_TOKENS = 8192
_CAPTURED_AT_LOAD = ((1, 16), (1, 32), (1, 64), (1, 128), (8, 32), (8, 128))

Inputs = dict[str, torch.Tensor]


class GraphRunner(PaddedRunner):
    """Replays what ``capture`` recorded."""

    name = "batches cut by length, CUDA graphs"

    def __init__(self, setup: RunnerSetup, capture: Capture | None = None) -> None:
        super().__init__(setup)
        self._eager = self._forward
        self._forward = self._replayed
        self._capture: Capture | None = capture or capture_on_stream(setup.device)
        self._captured: dict[tuple[int, int], tuple[Inputs, Replay]] = {}
        for num_rows, length in _CAPTURED_AT_LOAD:
            if length <= setup.max_length:
                self._graph(num_rows, length)

    def inputs(self, part: Sequence[Encoding], num_rows: int = 0, length: int = 0) -> Inputs:
        """As PaddedRunner's, filled up to the bucket."""
        longest = max(map(len, part))
        bucket = bucket_of(len(part), longest, self.setup.max_length)
        return super().inputs(part, *(bucket or (num_rows, length)))

    def _replayed(self, inputs: Inputs) -> torch.Tensor:
        num_rows, length = inputs["input_ids"].shape
        captured = None
        # Only buckets are captured: a graph of any other shape would hardly ever be used again.
        if bucket_of(num_rows, length, self.setup.max_length) == (num_rows, length):
            captured = self._graph(num_rows, length)
        if captured is None:
            return self._eager(inputs)
        held, replay = captured
        for name, tensor in inputs.items():
            held[name].copy_(tensor)
        # The graph's own output is written over by the next replay.
        return replay().clone()

    def _graph(self, num_rows: int, length: int) -> tuple[Inputs, Replay] | None:
        """A bucket's inputs and its replay; None where the model can't be captured."""
        if self._capture is None:
            return None
        key = (num_rows, length)
        if key not in self._captured:
            try:
                self._captured[key] = self._record(num_rows, length)
            except Exception as error:
                # Not every model can be captured; eager is always right.
                warn(f"computing without CUDA graphs: {type(error).__name__}: {reason(error)}")
                self._capture = None
                return None
        return self._captured[key]

    @torch.inference_mode()
    def _record(self, num_rows: int, length: int) -> tuple[Inputs, Replay]:
        assert self._capture is not None
        held = super().inputs([Encoding([self._pad_id] * length)], num_rows, length)
        return held, self._capture(lambda: self._eager(held))


def bucket_of(num_rows: int, length: int, max_length: int) -> tuple[int, int] | None:
    """The smallest (batch size, length) that holds a batch; None where it runs as it is."""
    lengths = [*(bucket for bucket in LENGTHS if bucket < max_length), max_length]
    wide = next((bucket for bucket in lengths if bucket >= length), None)
    high = next((bucket for bucket in BATCH_SIZES if bucket >= num_rows), None)
    if wide is None or high is None or wide * high > MAX_TOKENS:
        return None
    return high, wide

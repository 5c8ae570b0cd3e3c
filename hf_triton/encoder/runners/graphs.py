"""Short batches on a GPU as CUDA graphs: one launch instead of one for every operation.

A graph has fixed shapes, so one is captured for each bucket of length and of batch size, and a
batch runs in the smallest that holds it. All are captured at load, the largest first: the others
find room in the memory it took, and no caller waits for a capture. Batches with more tokens than a
launch can hide behind, or of a bucket that could not be captured, run eagerly.

See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod

import torch

from hf_triton.runtime.devices.cuda_capture import Capture, Replay, capture_each

from ..texts.encoding import Encoding
from .encoder_runner import RunnerSetup

# A bucket is at most half as long again as the texts in it: attention's time grows with the square
# of the length.
LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
# With more tokens the GPU computes a layer for longer than the CPU takes to launch it, so a
# graph gains nothing.
MAX_TOKENS = 8192

Bucket = tuple[int, int]  # batch size, length


class Graphs:
    """A forward, captured for each bucket. All share one input and one output buffer. ``rows``
    makes its inputs of texts, as many rows and columns as are asked for.
    """

    def __init__(
        self,
        setup: RunnerSetup,
        rows: Callable[[Sequence[Encoding], int, int], torch.Tensor],
        forward: Callable[[torch.Tensor], torch.Tensor],
        capture: Capture,
    ) -> None:
        self._rows, self._forward, self._max_length = rows, forward, setup.max_length
        num_inputs = 3 if setup.has_token_types else 2
        self._inputs = torch.zeros(num_inputs * MAX_TOKENS, dtype=torch.int64, device=setup.device)
        self._output = torch.empty(0)
        self._captured = capture_each(
            buckets(self._max_length), partial(self._record, capture), "all batches"
        )

    def replayed(self, part: Sequence[Encoding]) -> torch.Tensor | None:
        """The output of a batch; None where no graph holds it."""
        bucket = bucket_of(len(part), max(map(len, part)), self._max_length)
        if bucket is None or bucket not in self._captured:
            return None
        self._fill(self._rows(part, *bucket))
        # The next replay writes over a graph's output.
        return self._captured[bucket]().clone()

    def _fill(self, rows: torch.Tensor) -> torch.Tensor:
        """Copies inputs to the graphs' buffer without waiting; returns a view of it."""
        held = self._inputs[: rows.numel()].view(rows.shape)
        return held.copy_(rows.pin_memory() if held.is_cuda else rows, non_blocking=True)

    @torch.inference_mode()
    def _record(self, capture: Capture, bucket: Bucket) -> Replay:
        num_rows, length = bucket
        # With some padding: transformers leaves out a mask that hides nothing, but never while it
        # captures, and then attention would be captured that was not warmed up.
        padded = Encoding([0] * max(1, length - 1))
        inputs = self._fill(self._rows([padded], num_rows, length))

        def run() -> torch.Tensor:
            output = self._forward(inputs)
            if not len(self._output):
                most = MAX_TOKENS if output.dim() == 3 else BATCH_SIZES[-1]
                self._output = output.new_empty(most * output.shape[-1])
            return self._output[: output.numel()].view(output.shape).copy_(output)

        return capture(run)


def buckets(max_length: int) -> list[Bucket]:
    """Every bucket of a model whose texts have at most ``max_length`` tokens; the largest first."""
    found = product(BATCH_SIZES, _lengths(max_length))
    return sorted((one for one in found if prod(one) <= MAX_TOKENS), key=prod, reverse=True)


def bucket_of(num_rows: int, length: int, max_length: int) -> Bucket | None:
    """The smallest (batch size, length) that holds a batch; None where it runs eagerly."""
    wide = next((bucket for bucket in _lengths(max_length) if bucket >= length), None)
    high = next((bucket for bucket in BATCH_SIZES if bucket >= num_rows), None)
    if wide is None or high is None or wide * high > MAX_TOKENS:
        return None
    return high, wide


def _lengths(max_length: int) -> list[int]:
    return [*(bucket for bucket in LENGTHS if bucket < max_length), max_length]

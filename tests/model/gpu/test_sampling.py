"""Sampling by itself: whatever the options, one copy out and one wait, and little memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hf_triton.text_generation.sampling.columns import MOST_LOGITS, to_device
from hf_triton.text_generation.sampling.sampler import Sampler
from hf_triton.text_generation.sequence.sequence import Sequence
from tests.model.engine.sampling.test_sampling import sequence
from tests.model.engine.sampling.test_step_ahead import EveryThird
from tests.model.gpu.fake.events import Log
from tests.model.gpu.fake.gpu import FakeGpu
from tests.model.gpu.test_decode_steps import WAYS

WIDE = 128256


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    with FakeGpu() as gpu:
        yield gpu


class Steps:
    """Steps of the same sequences, each prepared before the one before it is read."""

    def __init__(self, gpu: FakeGpu, rows: list[Sequence], vocab_size: int = 64) -> None:
        self.gpu, self.rows, self.vocab_size = gpu, rows, vocab_size
        self.sampler = Sampler([2])
        self.pending: dict[Sequence, int] = {}

    def run(self) -> Log:
        """One step; what the sampler needs is on the device already -> what it asked for."""
        inputs = self.sampler.prepare(self.rows, self.vocab_size, self.pending)
        array = to_device(inputs.array, torch.device("cuda:0"))
        shape = len(self.rows), self.vocab_size
        logits = torch.empty(shape, dtype=torch.bfloat16, device="cuda:0")
        self.gpu.log.clear()
        self.gpu.live.reset_peak()
        before = self.gpu.live.now
        sampled = self.sampler.launch(logits, inputs, array)
        self.num_bytes = self.gpu.live.peak - before
        for one, token in zip(self.rows, sampled.read(), strict=True):
            one.append(token, frozenset())
            one.num_pending = 0
        # As if they were not read yet: the next step takes their last tokens from the device.
        for row, one in enumerate(self.rows):
            one.num_pending, self.pending[one] = 1, row
            del one.token_ids[-1]
        return Log(self.gpu.log)


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_is_ahead_copies_its_tokens_out_and_waits_once(gpu: FakeGpu, way: str) -> None:
    steps = Steps(gpu, [sequence(**WAYS[way]) for _ in range(3)])
    for _ in range(3):
        log = steps.run()
    assert [log.count(kind) for kind in ("h2d", "d2h", "wait")] == [0, 1, 1], log.told("h2d", "d2h")


def test_so_does_a_step_of_every_way_at_once_in_few_launches(gpu: FakeGpu) -> None:
    steps = Steps(gpu, [sequence(**way) for way in WAYS.values()])
    for _ in range(3):
        log = steps.run()
    assert [log.count(kind) for kind in ("h2d", "d2h", "wait")] == [0, 1, 1]
    assert log.count("kernel") <= 49, log.told("kernel")


def test_what_grammars_forbid_is_one_copy_more(gpu: FakeGpu) -> None:
    held = [sequence(seed=n, constraint="any") for n in range(3)]
    for one in held:
        one.grammar = EveryThird()
    log = Steps(gpu, [*held, sequence()]).run()  # greedy: no kernel is tried
    assert [log.count(kind) for kind in ("h2d", "d2h", "wait")] == [1, 1, 1], log.told("h2d")


def test_many_rows_of_a_wide_vocabulary_take_little_memory(gpu: FakeGpu) -> None:
    """Beside the logits in float32, some parts of which are computed at a time."""
    steps = Steps(gpu, [sequence(**WAYS[way]) for way in WAYS for _ in range(25)], WIDE)
    for _ in range(2):
        steps.run()
    assert steps.num_bytes - 4 * len(steps.rows) * WIDE <= 2 * 4 * MOST_LOGITS

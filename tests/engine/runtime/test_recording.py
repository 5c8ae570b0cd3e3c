"""kernels/recording.py: what was recorded of some numbers computes others as well."""

from __future__ import annotations

import gc

import pytest
import torch

from hf_triton.runtime.fused.parts import Norm
from hf_triton.runtime.fused.row_loops import RowLoops
from hf_triton.runtime.kernels.recording import (
    Compute,
    NotRecordableError,
    Pool,
    Recording,
    Recordings,
)
from hf_triton.runtime.kernels.thread_team import ThreadTeam

SIZE = 64
WEIGHT = torch.rand(SIZE, SIZE)


def numbers(seed: int, rows: int = 5) -> torch.Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def compute() -> Compute:
    """Kernels, operators with new memory and in place, views and copies."""
    loops = RowLoops(torch.float32, ThreadTeam(torch.get_num_threads()))
    norm = Norm(torch.rand(SIZE), 1e-6)

    def run(x: torch.Tensor) -> torch.Tensor:
        y = loops.added(x, None, norm)
        delta = torch.nn.functional.linear(y, WEIGHT).mul_(0.1)
        x = loops.added(x, delta, None)
        z = torch.cat([x[1:], y[:1]]).t().contiguous().t().contiguous()
        return loops.added(z, delta, norm)

    return run


@torch.inference_mode()
def test_other_numbers_are_computed_as_without_it(compute: Compute) -> None:
    recordings = Recordings()
    for rows in (5, 9):
        for seed in range(3):
            x = numbers(seed, rows)
            made = recordings.compute(rows, compute, x.clone())
            assert torch.equal(made, compute(x.clone()))
    for seed, rows in ((7, 9), (8, 5), (9, 9)):
        recorded = recordings.get(rows)
        assert recorded is not None
        assert torch.equal(recorded(numbers(seed, rows)), compute(numbers(seed, rows)))


@torch.inference_mode()
def test_recordings_share_their_memory(compute: Compute) -> None:
    pool = Pool()
    first = Recording(compute, numbers(1), pool)
    num_bytes = pool.num_bytes
    more = [Recording(compute, numbers(1), pool) for _ in range(20)]
    gc.collect()
    assert pool.num_bytes == num_bytes
    for recording in (first, *more):
        assert torch.equal(recording(numbers(2)), compute(numbers(2)))


@torch.inference_mode()
def test_what_depends_on_numbers_is_not_recorded() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    x = torch.ones(2, 2)
    with pytest.raises(NotRecordableError, match="__bool__"):
        Recording(run, x, Pool())
    recordings = Recordings()
    for sign in (1, 1, -1, 1, -1):
        assert torch.equal(recordings.compute("", run, sign * x), sign * (x + 1))

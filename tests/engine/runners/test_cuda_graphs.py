"""Graph buckets, padding and the way back to eager, on the CPU: "captured" here means run again on
the same input tensors, as a replayed graph does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hf_runtime.devices.cuda_capture import Replay
from text_generation.in_flight import engine as in_flight
from text_generation.in_flight import storage
from text_generation.in_flight.engine import InFlightEngine
from text_generation.kv.kv_cache import CacheSize, KVCache, layer_shapes
from text_generation.runners import cuda_graphs
from text_generation.runners.cuda_graphs import (
    GraphedRunner,
    length_buckets,
    row_buckets,
    with_cuda_graphs,
)
from text_generation.runners.packed_runner import PackedRunner

from tests.engine.driving import Answers, generate_all, running, setup
from tests.engine.tiny_models import mixed_load, reference, tiny_model

OPTIONS: dict[str, Any] = {"max_num_seqs": 6, "max_num_batched_tokens": 24, "max_model_len": 100}
FAILED = "W decoding without CUDA graphs: RuntimeError: operation not permitted when capturing"


class Captures:
    """Counts what is captured; replays by running again."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.num_captured = self.num_replayed = 0
        self.row_counts: list[int] = []
        self.fails_after = fails_after

    def __call__(self, run: Callable[[], torch.Tensor]) -> Replay:
        if self.num_captured == self.fails_after:
            raise RuntimeError("operation not permitted\nwhen capturing")
        self.num_captured += 1
        shape = run().shape
        self.row_counts.append(shape[0])

        def replay() -> torch.Tensor:
            self.num_replayed += 1
            output = run()
            assert output.shape == shape
            return output

        return replay


@pytest.fixture
def engine_with(
    monkeypatch: pytest.MonkeyPatch, not_fused: None
) -> Callable[[Any, Captures], InFlightEngine]:
    """An engine whose packed runner is under graphs, with the cache's spare column."""

    def make(model: Any, captures: Captures) -> InFlightEngine:
        monkeypatch.setattr(cuda_graphs, "_SMALLEST_LENGTH", 16)
        monkeypatch.setattr(storage, "KVCache", lambda shapes, size, _: KVCache(shapes, size, 1))
        monkeypatch.setattr(
            in_flight, "with_cuda_graphs", lambda runner, _: GraphedRunner(runner, captures)
        )
        return InFlightEngine(setup(model, **OPTIONS))

    return make


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_replayed_decodes_give_generates_tokens(
    name: str, engine_with: Callable[[Any, Captures], InFlightEngine]
) -> None:
    model, asked, captures = tiny_model(name), mixed_load(12), Captures()
    expected = reference(model, asked)
    with running(engine_with(model, captures)) as engine:
        assert "(packed, CUDA graphs)" in engine.description
        assert generate_all(engine, asked, at_first=7) == expected
    # Up to 5 counts (1, 2, 4, 6) x 3 lengths (16, 32, 64), each captured once.
    assert 3 < captures.num_captured <= 12
    assert captures.num_replayed > captures.num_captured


@pytest.mark.parametrize("fails_after", [0, 2])
def test_what_cannot_be_captured_stays_eager_and_says_so_once(
    fails_after: int,
    engine_with: Callable[[Any, Captures], InFlightEngine],
    log_lines: list[str],
) -> None:
    model, asked, captures = tiny_model("llama"), mixed_load(12), Captures(fails_after)
    expected = reference(model, asked)
    with running(engine_with(model, captures)) as engine:
        assert generate_all(engine, asked, at_first=7) == expected
    assert log_lines == [FAILED]
    assert captures.num_captured == fails_after


def test_replays_that_differ_from_running_are_not_used(
    engine_with: Callable[[Any, Captures], InFlightEngine], log_lines: list[str]
) -> None:
    class Elsewhere(Captures):
        """As where the kernels were launched on another device: no output is written."""

        def __call__(self, run: Callable[[], torch.Tensor]) -> Replay:
            replay = super().__call__(run)
            return lambda: torch.zeros_like(replay())

    model, asked = tiny_model("llama"), mixed_load(6)
    expected = reference(model, asked)
    with running(engine_with(model, Elsewhere())) as engine:
        assert generate_all(engine, asked, at_first=6) == expected
    (line,) = log_lines
    assert line.startswith("W decoding without CUDA graphs: RuntimeError: a replayed step's logits")


def test_padding_rows_write_to_the_spare_column_only(
    engine_with: Callable[[Any, Captures], InFlightEngine],
) -> None:
    engine, answers = engine_with(tiny_model("llama"), Captures()), Answers()
    with running(engine):
        for stored in (*engine._cache.keys, *engine._cache.values):
            stored.zero_()  # the warm-up has been here
        engine.submit([answers.sequence(n, [5, 6, 7], max_tokens=9) for n in range(3)])
        answers.wait(3)
        for stored in (*engine._cache.keys, *engine._cache.values):
            assert stored[:3, :, : 3 + 8].all()
            assert not stored[:, :, 3 + 8 : 100].any()
            assert not stored[3:, :, :100].any()
            assert stored[3, :, 100].any()  # three rows ran in the bucket of four


def test_every_row_count_is_captured_at_load() -> None:
    captures = Captures()
    engine = InFlightEngine(setup(tiny_model("llama"), **OPTIONS))
    with running(engine):
        assert isinstance(engine.size, CacheSize)
        cache = KVCache(layer_shapes(tiny_model("llama"), engine.setup.device), engine.size, 1)
        inner = PackedRunner(engine.setup.model, cache, engine.setup.device)
        graphed = GraphedRunner(inner, captures)
        graphed.warm_up()
    assert graphed.num_graphs == 4
    assert captures.row_counts == [6, 4, 2, 1]  # the largest first: the others fit in its memory


def test_on_the_cpu_runners_are_left_as_they_are() -> None:
    runner = object()
    assert with_cuda_graphs(runner, torch.device("cpu")) is runner


def test_a_runner_that_is_not_packed_is_left_as_it_is() -> None:
    runner = object()
    assert with_cuda_graphs(runner, torch.device("cuda")) is runner


@pytest.mark.parametrize(
    "num_slots, expected",
    [
        (1, [1]),
        (2, [1, 2]),
        (6, [1, 2, 4, 6]),
        (16, [1, 2, 4, 8, 16]),
        (40, [1, 2, 4, 8, 16, 32, 40]),
        (64, [1, 2, 4, 8, 16, 32, 48, 64]),
    ],
)
def test_row_buckets_end_at_the_number_of_slots(num_slots: int, expected: list[int]) -> None:
    assert row_buckets(num_slots) == expected


@pytest.mark.parametrize(
    "max_model_len, expected",
    [(100, [100]), (256, [256]), (257, [256, 257]), (2000, [256, 512, 1024, 2000])],
)
def test_length_buckets_end_at_the_longest_sequence(
    max_model_len: int, expected: list[int]
) -> None:
    assert length_buckets(max_model_len) == expected

"""Sizes of graphs, padding and the way back to eager, on the CPU: "captured" here means run again
on the same input tensors, as a replayed graph does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from hf_triton.runtime.devices.cuda_capture import Replay
from hf_triton.text_generation.engines.in_flight import in_flight_engine as in_flight
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.forward.paged.graphs import (
    GraphedRunner,
    batch_sizes,
    with_cuda_graphs,
)
from tests.support.driving import Answers, generate_all, running, setup
from tests.support.tiny_models import STATES, Asked, mixed_load, reference, tiny_model

OPTIONS: dict[str, Any] = {"max_num_seqs": 6, "max_num_batched_tokens": 24, "max_model_len": 100}


class Captures:
    """Counts what is captured; replays by running again, into one held output as a graph does."""

    def __init__(self, fails_at: tuple[int, ...] = ()) -> None:
        self.num_tried = self.num_replayed = 0
        self.row_counts: list[int] = []
        self.fails_at = fails_at

    def __call__(self, run: Callable[[], torch.Tensor]) -> Replay:
        self.num_tried += 1
        if self.num_tried in self.fails_at:
            raise RuntimeError("operation not permitted\nwhen capturing")
        held = run().clone()
        self.row_counts.append(len(held))

        def replay() -> torch.Tensor:
            self.num_replayed += 1
            output = run()
            assert output.shape == held.shape
            return held.copy_(output)

        return replay


MakeEngine = Callable[..., InFlightEngine]


@pytest.fixture
def engine_with(monkeypatch: pytest.MonkeyPatch) -> MakeEngine:
    """An engine over pages, whose runner is under graphs."""

    def make(model: Any, captures: Captures, **options: Any) -> InFlightEngine:
        def with_graphs(runner: Any, _: torch.device) -> GraphedRunner:
            graphed = GraphedRunner(runner, captures)
            graphed.capture_all()
            return graphed

        monkeypatch.setattr(in_flight, "with_cuda_graphs", with_graphs)
        made = setup(model, **{**OPTIONS, **options})
        return InFlightEngine(replace(made, compiled=False))

    return make


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("name", ["gemma2", "gpt2", "qwen3-next"])
def test_replayed_steps_give_generates_tokens(name: str, engine_with: MakeEngine) -> None:
    model, asked, captures = tiny_model(name), mixed_load(12), Captures()
    expected = reference(model, asked)
    runner = "packed, states" if name in STATES else "packed"
    with running(engine_with(model, captures)) as engine:
        assert f"({runner}, CUDA graphs)" in engine.description
        at_load = captures.num_replayed
        assert generate_all(engine, asked, at_first=7) == expected
    assert captures.row_counts == [6, 4, 2, 1]  # the largest first
    assert captures.num_replayed > at_load


class Elsewhere(Captures):
    """As where the kernels were launched on another device: no output is written."""

    def __call__(self, run: Callable[[], torch.Tensor]) -> Replay:
        replay = super().__call__(run)
        return lambda: torch.zeros_like(replay())


NOT_PERMITTED = "RuntimeError: operation not permitted when capturing"


@pytest.mark.parametrize(
    "captures, num_tried, num_graphs, said",
    [
        (
            Captures(fails_at=(1, 3)),
            4,
            2,
            f"2 of 4 sizes run without CUDA graphs: {NOT_PERMITTED}",
        ),
        # And not all sizes, each of which takes time.
        (
            Captures(tuple(range(1, 9))),
            3,
            0,
            f"all steps run without CUDA graphs: {NOT_PERMITTED}",
        ),
        (Elsewhere(), 3, 0, "all steps run without CUDA graphs: RuntimeError: a replayed step"),
    ],
    ids=["two sizes", "no size", "wrong replays"],
)
def test_what_cannot_be_captured_runs_eagerly_and_is_told_once(
    captures: Captures,
    num_tried: int,
    num_graphs: int,
    said: str,
    engine_with: MakeEngine,
    log_lines: list[str],
) -> None:
    model, asked = tiny_model("llama"), mixed_load(12)
    expected = reference(model, asked)
    with running(engine_with(model, captures)) as engine:
        assert engine.runner.num_graphs == num_graphs  # type: ignore[attr-defined]
        at_load = captures.num_replayed
        assert generate_all(engine, asked, at_first=7) == expected
    assert captures.num_tried == num_tried
    assert (captures.num_replayed > at_load) is bool(num_graphs)
    line, *captured = log_lines
    assert line.startswith(f"W {said}")
    assert [one[:22] for one in captured] == ["I captured 2 CUDA grap"] * bool(num_graphs)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_prompts_of_several_pages_share_them_and_give_generates_tokens(
    engine_with: MakeEngine,
) -> None:
    model, captures = tiny_model("llama", max_position_embeddings=1024), Captures()
    head = [7 * n % 97 for n in range(600)]
    asked = [Asked([*head[:length], 5, n], 9) for n, length in enumerate((600, 600, 530, 254))]
    expected = reference(model, asked)
    with running(engine_with(model, captures, max_model_len=700)) as engine:
        assert engine.description.startswith("in_flight engine (packed, CUDA graphs)")
        assert "pages of 256 tokens" in engine.description
        assert generate_all(engine, asked, at_first=1) == expected
        assert engine.metrics.num_reused_prompt_tokens == 512 + 512 + 254


def test_padding_writes_to_page_0_only(engine_with: MakeEngine) -> None:
    engine, answers = engine_with(tiny_model("llama"), Captures()), Answers()
    with running(engine):
        stored = (*engine.runner.cache.keys, *engine.runner.cache.values)
        for pages in stored:
            pages.zero_()  # the warm-up has been here
        engine.submit([answers.sequence(n, [5, 6, 7], max_tokens=9) for n in range(3)])
        answers.wait(3)
        for pages in stored:
            written = pages.flatten(2).any(2)  # (pages, page size)
            assert written[0].any()  # three sequences ran in the graph of four
            used = written[1:].any(1).nonzero().flatten() + 1
            assert len(used) == 3
            assert all(written[page].tolist() == [True] * 11 + [False] * 5 for page in used)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_runners_of_another_kind_are_left_as_they_are(device: str) -> None:
    runner: Any = object()
    assert with_cuda_graphs(runner, torch.device(device)) is runner


@pytest.mark.parametrize(
    "most, expected",
    [
        (1, [1]),
        (6, [1, 2, 4, 6]),
        (8, [1, 2, 4, 8]),
        (40, [1, 2, 4, 8, 16, 24, 32, 40]),
        (512, [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]),
    ],
)
def test_batch_sizes_end_at_the_most(most: int, expected: list[int]) -> None:
    assert batch_sizes(most) == expected

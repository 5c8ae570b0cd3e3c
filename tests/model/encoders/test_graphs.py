"""Batches in fixed shapes, with a capture that records and replays on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from hf_triton.encoder.runners.encoder_runner import (
    largest_difference,
    random_encodings,
    reference_forward,
    select_runner,
)
from hf_triton.encoder.runners.graphs import bucket_of, buckets
from hf_triton.encoder.runners.padded_runner import PaddedRunner
from hf_triton.encoder.task import OutputKind
from hf_triton.runtime.devices.cuda_capture import Replay
from hf_triton.runtime.trial import RunnerSpec
from tests.model.engine.runners.test_cuda_graphs import Captures
from tests.support.encoder_setups import setup_of
from tests.support.tiny_encoders import tiny_encoder


@pytest.mark.parametrize(
    "architecture, output, auto_class",
    [
        ("bert", "hidden", "AutoModel"),
        ("deberta-v2", "sequences", "AutoModelForSequenceClassification"),
        ("modernbert", "tokens", "AutoModelForTokenClassification"),
    ],
)
def test_replayed_batches_agree_with_the_model(
    architecture: str, output: OutputKind, auto_class: str, tmp_path: Path
) -> None:
    setup = setup_of(tiny_encoder(architecture, auto_class, tmp_path), output, auto_class)
    capture = Captures()
    runner = select_runner(setup, [RunnerSpec("graphs", partial(PaddedRunner, capture=capture))])
    encodings = random_encodings(setup, (5, 17, 128, 3, 100, 3, 3))
    expected = [reference_forward(setup, encoding) for encoding in encodings]
    before = capture.num_tried
    for _ in range(2):
        assert largest_difference(runner.forward(encodings), expected) < 1e-4
    assert capture.num_replayed >= 6
    assert capture.num_tried == before, "all is captured at load"


def test_what_cannot_be_captured_runs_eagerly_and_says_so_once(
    tmp_path: Path, log_lines: list[str]
) -> None:
    setup = setup_of(tiny_encoder("bert", "AutoModel", tmp_path))

    runner = PaddedRunner(setup, capture=Captures(fails_at=tuple(range(1, 99))))
    encodings = random_encodings(setup, (5, 40))
    expected = [reference_forward(setup, encoding) for encoding in encodings]
    assert largest_difference(runner.forward(encodings), expected) < 1e-4
    [line] = log_lines
    assert "all batches run without CUDA graphs: RuntimeError: operation not permitted" in line


def test_a_capture_that_fails_costs_its_own_bucket_alone(
    tmp_path: Path, log_lines: list[str]
) -> None:
    class NoMemoryForOne(Captures):
        def __call__(self, run: Callable[[], torch.Tensor]) -> Replay:
            if run().shape[:2] == (1, 64):
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().__call__(run)

    setup = setup_of(tiny_encoder("bert", "AutoModel", tmp_path))
    capture = NoMemoryForOne()
    runner = PaddedRunner(setup, capture=capture)
    num_buckets = len(list(buckets(setup.max_length)))
    assert capture.num_tried == num_buckets - 1
    encodings = random_encodings(setup, (5, 40))
    expected = [reference_forward(setup, encoding) for encoding in encodings]
    assert largest_difference(runner.forward(encodings), expected) < 1e-4
    assert capture.num_replayed == 1  # of the short one
    (line,) = log_lines
    assert f"1 of {num_buckets} sizes run without CUDA graphs: " in line


def test_what_is_captured_has_padding_as_batches_have(tmp_path: Path) -> None:
    """transformers leaves out a mask of ones alone, but not while it captures."""
    setup = setup_of(tiny_encoder("bert", "AutoModel", tmp_path))
    masks: list[torch.Tensor] = []
    forward = setup.model.forward

    def recorded(**inputs: torch.Tensor) -> object:
        masks.append(inputs["attention_mask"].clone())
        return forward(**inputs)

    setup.model.forward = recorded
    PaddedRunner(setup, capture=Captures())
    assert masks
    assert all(0 in mask for mask in masks)


@pytest.mark.parametrize(
    "longest, num_rows, length, bucket",
    [
        *((500, 1, 5, (1, 16)), (500, 3, 33, (4, 64)), (500, 32, 256, (32, 256))),
        *((500, 33, 16, None), (500, 32, 300, None), (500, 1, 500, (1, 500)), (500, 1, 501, None)),
        # A long model pads a text by half at most.
        *((8192, 1, 520, (1, 768)), (8192, 4, 1100, (4, 1536)), (8192, 1, 7000, (1, 8192))),
        (8192, 2, 4097, None),
    ],
)
def test_the_smallest_bucket_that_holds_a_batch(
    longest: int, num_rows: int, length: int, bucket: tuple[int, int] | None
) -> None:
    assert bucket_of(num_rows, length, longest) == bucket

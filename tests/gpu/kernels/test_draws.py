"""The kernel that draws tokens, in OpenAI Triton's interpreter, against the CPU's way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_triton.text_generation.sampling.columns import Columns, DeviceColumns
from hf_triton.text_generation.sampling.random_sampling import Draws
from tests.engine.sampling.test_sampling import random_logits, sequence

pytest.importorskip("triton")
import hf_triton.text_generation.gpu.ops  # noqa: F401

TEMPERATURES = (1e-6, 0.3, 0.7, 1.0, 2.5, 1e30)
FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 2},
    {"top_k": 39},
    {"top_k": 4000},
    {"top_p": 1e-6},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"top_k": 50, "top_p": 0.4},
    {"top_k": 7, "top_p": 0.95, "min_p": 0.1},
]
WAYS = [{"temperature": t, **filters} for t in TEMPERATURES for filters in FILTERS]


def tokens(logits: torch.Tensor, ways: list[dict[str, Any]], seed: int) -> tuple[Any, Any]:
    """(rows,) ours and those of torch's operators."""
    rows, columns = [sequence(seed=seed + n, **way) for n, way in enumerate(ways)], Columns()
    drawn = [(row, one.params, one.uniform()) for row, one in enumerate(rows)]
    draws = Draws.of(drawn, logits.shape[1], columns)
    values = DeviceColumns(torch.from_numpy(columns.array()))
    token_ids = torch.full((len(rows),), -1)
    draws.draw_by_kernel(logits, values, token_ids)
    return token_ids, draws.draw(logits, values)


@pytest.mark.parametrize(
    "vocab_size, dtype",
    [
        *((1, torch.float32), (40, torch.bfloat16), (128, torch.float32)),
        pytest.param(5000, torch.bfloat16, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_kernel_draws_the_tokens_that_torch_does(vocab_size: int, dtype: torch.dtype) -> None:
    logits = random_logits(len(WAYS), seed=vocab_size, vocab_size=vocab_size).to(dtype)
    logits[::3, 2 : vocab_size // 2] = float("-inf")
    logits[1::3] = logits[1::3].round()  # many are equal
    drawn, expected = tokens(logits, WAYS, seed=vocab_size)
    assert drawn.tolist() == expected.tolist()


def test_a_row_that_forbids_everything_or_is_no_number_gets_a_token_all_the_same() -> None:
    logits = random_logits(3)
    logits[0], logits[1] = float("-inf"), float("nan")
    drawn, expected = tokens(logits, WAYS[9:12], seed=0)
    assert all(token in range(logits.shape[1]) for token in drawn.tolist())
    assert drawn[2] == expected[2]


def test_rows_that_are_not_drawn_are_left_alone() -> None:
    logits, token_ids = random_logits(3), torch.tensor([-5, -6, -7])
    rows, top_k = torch.tensor([1]), torch.tensor([0])
    numbers = torch.tensor([[1.0], [0.5], [0.0], [0.0]])
    torch.ops.hf_triton.draw(logits, rows, numbers, top_k, token_ids)
    assert token_ids[[0, 2]].tolist() == [-5, -7]
    assert token_ids[1] >= 0

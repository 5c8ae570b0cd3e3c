"""Options that contradict each other are told apart from those that don't."""

from __future__ import annotations

import pytest

from hf_triton.text_generation.options import Options


@pytest.mark.parametrize("max_num_seqs, max_num_batched_tokens", [(None, 1), (8, 8), (64, 512)])
def test_a_step_that_holds_every_running_sequence_is_fine(
    max_num_seqs: int | None, max_num_batched_tokens: int
) -> None:
    options = Options(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    assert options.problems() == []


def test_a_step_smaller_than_the_running_sequences_is_named() -> None:
    message = (
        "got 8, expected at least max_num_seqs (9): "
        "a step computes one token for each running sequence"
    )
    options = Options(max_num_seqs=9, max_num_batched_tokens=8)
    assert options.problems() == [("max_num_batched_tokens", message)]

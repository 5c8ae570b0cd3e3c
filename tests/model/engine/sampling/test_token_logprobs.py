"""Log-probabilities are the model's own, whatever else changes the choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hf_triton.text_generation.sampling.sampler import Sampler
from hf_triton.text_generation.sampling.token_logprobs import prompt_logprobs
from tests.model.engine.sampling.test_sampling import EOS, VOCAB_SIZE, random_logits, sequence


def reference(logits: torch.Tensor) -> Any:
    """(vocab,) float64."""
    scores = logits.double().numpy()
    return scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.7, "seed": 3, "top_k": 5},
        {"repetition_penalty": 3.0, "presence_penalty": 2.0, "logit_bias": ((7, 100.0),)},
        {"min_tokens": 3, "bad_token_ids": ((1,), (2,))},
    ],
    ids=str,
)
def test_they_are_of_the_raw_logits_with_rank_and_the_likeliest_others(
    options: dict[str, Any],
) -> None:
    logits = random_logits(3, seed=9)
    rows = [sequence(), sequence(num_logprobs=4, **options), sequence(num_logprobs=0, **options)]
    found = Sampler([EOS]).sample(logits.clone(), rows)
    assert list(found.logprobs) == [1, 2]
    assert found.logprobs[2].alternatives == ()
    token_id, asked = found.token_ids[1], found.logprobs[1]
    expected = reference(logits[1])
    order = np.argsort(-expected).tolist()
    assert asked.logprob == pytest.approx(expected[token_id], abs=1e-5)
    assert asked.rank == 1 + order.index(token_id)
    others = asked.alternatives
    assert [token for token, _, _ in others] == [t for t in order[:4] if t != token_id]
    assert [rank for *_, rank in others] == [1 + order.index(token) for token, _, _ in others]
    for token, logprob, _ in others:
        assert logprob == pytest.approx(expected[token], abs=1e-5)


def test_equal_tokens_share_the_better_rank() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [4, 6, 8]] = 3.0
    logits[0, 9] = 1.0
    [token_id], logprobs = Sampler([]).sample(logits, [sequence(num_logprobs=5)])
    ranks = {token_id: logprobs[0].rank}
    ranks |= {other: rank for other, _, rank in logprobs[0].alternatives}
    assert [ranks[n] for n in (4, 6, 8, 9)] == [1, 1, 1, 4]


def test_tokens_that_the_model_rules_out_are_no_alternatives() -> None:
    logits = torch.full((1, 7), float("-inf"))  # a vocabulary smaller than what is asked for
    logits[0, [2, 3]] = torch.tensor([1.0, 0.0])
    found = Sampler([]).sample(logits, [sequence(num_logprobs=20)])
    assert [other for other, _, _ in found.logprobs[0].alternatives] == [3]


def test_a_token_of_probability_0_has_a_number_that_json_has() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 1.0], [0.0, float("nan"), 1.0]])
    found = prompt_logprobs(logits, [1, 1], 2)
    assert [one.logprob for one in found] == [-9999.0, pytest.approx(np.nan, nan_ok=True)]


def test_bfloat16_logits_are_normalised_in_float32() -> None:
    logits = random_logits(1, vocab_size=5000).bfloat16()
    [token_id], logprobs = Sampler([]).sample(logits.clone(), [sequence(num_logprobs=0)])
    assert logprobs[0].logprob == pytest.approx(reference(logits[0].float())[token_id], abs=1e-4)

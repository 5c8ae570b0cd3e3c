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
    plain, asked, bare = Sampler([EOS]).sample(logits.clone(), rows)
    assert plain.logprobs is None
    assert bare.logprobs is not None
    assert bare.logprobs.alternatives == ()
    assert asked.logprobs is not None
    expected = reference(logits[1])
    order = np.argsort(-expected).tolist()
    assert asked.logprobs.logprob == pytest.approx(expected[asked.id], abs=1e-5)
    assert asked.logprobs.rank == 1 + order.index(asked.id)
    others = asked.logprobs.alternatives
    assert [token for token, _, _ in others] == [t for t in order[:4] if t != asked.id]
    assert [rank for *_, rank in others] == [1 + order.index(token) for token, _, _ in others]
    for token, logprob, _ in others:
        assert logprob == pytest.approx(expected[token], abs=1e-5)


def test_equal_tokens_share_the_better_rank() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [4, 6, 8]] = 3.0
    logits[0, 9] = 1.0
    (token,) = Sampler([]).sample(logits, [sequence(num_logprobs=5)])
    assert token.logprobs is not None
    ranks = {token.id: token.logprobs.rank}
    ranks |= {other: rank for other, _, rank in token.logprobs.alternatives}
    assert [ranks[n] for n in (4, 6, 8, 9)] == [1, 1, 1, 4]


def test_tokens_that_the_model_rules_out_are_no_alternatives() -> None:
    logits = torch.full((1, 7), float("-inf"))  # a vocabulary smaller than what is asked for
    logits[0, [2, 3]] = torch.tensor([1.0, 0.0])
    (token,) = Sampler([]).sample(logits, [sequence(num_logprobs=20)])
    assert token.logprobs is not None
    assert [other for other, _, _ in token.logprobs.alternatives] == [3]


def test_a_token_of_probability_0_has_a_number_that_json_has() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 1.0], [0.0, float("nan"), 1.0]])
    found = prompt_logprobs(logits, [1, 1], 2)
    assert [one.logprob for one in found] == [-9999.0, pytest.approx(np.nan, nan_ok=True)]


def test_bfloat16_logits_are_normalised_in_float32() -> None:
    logits = random_logits(1, vocab_size=5000).bfloat16()
    (token,) = Sampler([]).sample(logits.clone(), [sequence(num_logprobs=0)])
    assert token.logprobs is not None
    assert token.logprobs.logprob == pytest.approx(reference(logits[0].float())[token.id], abs=1e-4)

"""Sampling against transformers' own processors, one row at a time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hf_triton.text_generation.sampling import random_sampling
from hf_triton.text_generation.sampling.random_sampling import draw
from hf_triton.text_generation.sampling.sampler import Sampler, choice_seed
from hf_triton.text_generation.sampling.token_logprobs import prompt_logprobs
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import NO_TOKEN, Sequence
from hf_triton.text_generation.sequence.source import text_source

VOCAB_SIZE = 40
EOS = 3


def sequence(prompt: list[int] | None = None, **params: Any) -> Sequence:
    source = params.pop("source", None)
    return Sequence(
        prompt or [1, 2],
        SamplingParams(**{"max_tokens": 100, **params}),
        recipient=None,  # type: ignore[arg-type]
        detokenizer=None,  # type: ignore[arg-type]
        continues_prompt=source is None,
        source=source,
    )


def sample(sampler: Sampler, logits: torch.Tensor, rows: list[Sequence]) -> list[int]:
    """The ids alone; the logits stay as they are."""
    return sampler.sample(logits.clone(), rows).token_ids


def random_logits(num_rows: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * 3


def expected_probabilities(one: Sequence, logits: torch.Tensor) -> torch.Tensor:
    """(vocab,): what transformers would draw from."""
    params, steps = one.params, LogitsProcessorList()
    if params.repetition_penalty != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature not in (0, 1):
        steps.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k > 0:
        steps.append(TopKLogitsWarper(params.top_k))
    if 0 < params.top_p < 1:
        steps.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        steps.append(MinPLogitsWarper(params.min_p))
    before: Any = torch.tensor([one.penalised_token_ids])
    scores: Any = logits[None].clone()
    scores = steps(before, scores)
    probabilities: torch.Tensor = scores.softmax(dim=-1)[0]
    return probabilities


OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.3, 1.0, 2.5]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 7, 39, 40, 1000]),
        "top_p": st.sampled_from([0.0, 1e-6, 0.3, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.01, 0.2, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 0.5, 1.7]),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPTIONS, min_size=1, max_size=6), st.integers(0, 2**16))
def test_drawn_tokens_are_among_those_transformers_would_draw(
    options: list[dict[str, Any]], seed: int
) -> None:
    logits = random_logits(len(options), seed)
    rows = [sequence([5, 6, 7], seed=seed, **one) for one in options]
    expected = [
        expected_probabilities(row, row_logits)
        for row, row_logits in zip(rows, logits, strict=True)
    ]
    tokens = sample(Sampler([EOS]), logits, rows)
    for token, probabilities, row in zip(tokens, expected, rows, strict=True):
        if row.params.is_greedy:
            assert token == int(probabilities.argmax())
        assert probabilities[token] > 0


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 2.0, "top_k": 6},
        {"temperature": 1.5, "top_p": 0.8},
        {"temperature": 1.3, "top_k": 9, "top_p": 0.9},
        {"temperature": 1.5, "repetition_penalty": 1.8},
        {"temperature": 2.0, "min_p": 0.05},
        {"temperature": 2.0, "top_k": 20, "top_p": 0.95, "min_p": 0.02},
    ],
)
def test_frequencies_are_transformers_probabilities(options: dict[str, Any]) -> None:
    num_draws = 4000
    logits = random_logits(1, seed=5)
    rows = [sequence([5, 6, 7, 8], seed=seed, **options) for seed in range(num_draws)]
    counts = Counter(sample(Sampler([EOS]), logits.repeat(num_draws, 1), rows))
    probabilities = expected_probabilities(rows[0], logits[0])
    assert len(counts) > 3
    for token in range(VOCAB_SIZE):
        p = float(probabilities[token])
        five_sigma = 5 * (num_draws * p * (1 - p)) ** 0.5 + 1
        assert abs(counts[token] - num_draws * p) <= five_sigma, token


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.sampled_from([1, 40, 64, 65, 3000]), seed=st.integers(0, 2**16))
def test_a_loop_and_operators_draw_the_same_tokens(
    dtype: torch.dtype, data: st.DataObject, size: int, seed: int
) -> None:
    logits = random_logits(4, seed, size) * data.draw(st.sampled_from([0.01, 1, 3]))
    if data.draw(st.booleans()):
        logits = logits.round()  # many are equal
        logits[:, 1::3] = float("-inf")
    logits = logits.to(dtype)
    options: list[dict[str, Any]] = [data.draw(OPTIONS) for _ in logits]
    numbers = [data.draw(st.sampled_from([1e-6, 1 - 2**-53, 0.1, 0.5, 0.9])) for _ in logits]
    drawn = [
        (row, SamplingParams(max_tokens=1, **{**one, "repetition_penalty": 1.0}), number)
        for row, (one, number) in enumerate(zip(options, numbers, strict=True))
    ]
    assert random_sampling.draw_kernel(dtype) is not None
    tokens = draw(logits, drawn).tolist()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(random_sampling, "draw_kernel", lambda _: None)
        assert tokens == draw(logits, drawn).tolist()


def test_a_top_p_just_below_1_is_drawn_from_what_is_left_of_a_vocabulary() -> None:
    logits = random_logits(8, vocab_size=9000)
    logits[:, ::2] = float("-inf")
    rows = [sequence(temperature=1.0, top_p=1 - 2**-24, seed=seed) for seed in range(8)]
    assert all(token % 2 for token in sample(Sampler([]), logits, rows))


@pytest.mark.parametrize("by_operators", [False, True])
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.5}])
def test_a_row_that_is_no_number_is_told_by_its_token(
    options: dict[str, Any], by_operators: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_operators:
        monkeypatch.setattr(random_sampling, "draw_kernel", lambda _: None)
    logits = torch.randn(4, 300)
    logits[0, 7], logits[1, 9], logits[2] = float("nan"), float("inf"), float("-inf")
    rows = [sequence(temperature=1.0, **options) for _ in logits]
    tokens = sample(Sampler([]), logits, rows)
    assert tokens[:3] == [NO_TOKEN] * 3
    assert tokens[3] != NO_TOKEN


def test_an_encoders_prompt_is_not_penalised() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[:, 7] = 1.0
    logits[:, 8] = 0.9
    rows = [
        sequence([7], repetition_penalty=2.0),
        sequence([2], repetition_penalty=2.0, source=text_source([7])),
    ]
    assert sample(Sampler([EOS]), logits, rows) == [8, 7]


def test_without_a_seed_two_sequences_draw_differently() -> None:
    rows = [sequence(temperature=1.0) for _ in range(40)]
    assert len(set(sample(Sampler([EOS]), torch.zeros(40, VOCAB_SIZE), rows))) > 1


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e30, 1e300])
def test_extreme_temperatures_draw_a_token_that_may_be_drawn(temperature: float) -> None:
    logits = random_logits(200).repeat(2, 1)
    rows = [
        sequence(temperature=temperature, top_k=top_k, min_tokens=1, seed=seed)
        for top_k in (0, 5)
        for seed in range(200)
    ]
    tokens = sample(Sampler([EOS]), logits, rows)
    assert EOS not in tokens
    logits[:, EOS] = float("-inf")
    if temperature < 1:
        assert tokens == logits.argmax(dim=-1).tolist()
    else:
        assert len(set(tokens[:200])) > 30  # close to uniform over the vocabulary
        kept = logits[200:].topk(5).indices
        assert all(token in row for token, row in zip(tokens[200:], kept, strict=True))


def test_bfloat16_logits_are_drawn_in_float32() -> None:
    """In bfloat16 a cumulative sum of 4,000 equal masses stops growing long before its end."""
    rows = [sequence(temperature=1.0, seed=seed) for seed in range(300)]
    logits = torch.zeros(300, 4000, dtype=torch.bfloat16)
    tokens = sample(Sampler([]), logits, rows)
    assert max(tokens) > 3800
    assert 1700 < sum(tokens) / 300 < 2300


def test_equal_scores_are_kept_and_left_out_together_as_transformers_does() -> None:
    """A sort's order among them would depend on its width, so on the neighbours' options."""
    logits = torch.zeros(600, VOCAB_SIZE)
    logits[:, 5] = 2.0
    rows = [sequence(temperature=1.0, top_k=3, seed=seed) for seed in range(600)]
    assert set(sample(Sampler([]), logits, rows)) == set(range(VOCAB_SIZE))
    assert float(expected_probabilities(rows[0], logits[0])[39]) > 0


def test_a_choices_seed_is_its_own_and_the_first_ones_is_the_requests() -> None:
    assert choice_seed(7, 0) == 7
    assert choice_seed(None, 3) is None
    seeds = [choice_seed(seed, index) for seed in (0, 1, 2**64 - 1) for index in range(128)]
    assert len(set(seeds)) == len(seeds)
    assert all(seed is not None and 0 <= seed < 2**64 for seed in seeds)
    assert choice_seed(7, 1) == choice_seed(7, 1)


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

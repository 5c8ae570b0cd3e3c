"""Biases, penalties, bad words and withheld ends against transformers' own processors or numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from hf_triton.text_generation.sampling.logits_processors import LogitsProcessors
from hf_triton.text_generation.sampling.sampler import Sampler
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.sequence.source import text_source
from tests.model.engine.sampling.test_sampling import (
    EOS,
    VOCAB_SIZE,
    random_logits,
    sample,
    sequence,
)


def having(token_ids: list[int], prompt: list[int] | None = None, **params: Any) -> Sequence:
    one = sequence(prompt, **params)
    for token_id in token_ids:
        one.append(token_id, frozenset())
    return one


def changed(logits: torch.Tensor, *rows: Sequence, eos: tuple[int, ...] = (EOS,)) -> torch.Tensor:
    logits = logits.clone()
    LogitsProcessors(eos).apply(logits, rows)
    return logits


def ids(one: Sequence) -> Any:
    return torch.tensor([one.penalised_token_ids])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30),
    st.sampled_from([-2.0, -0.3, 0.0, 0.7, 2.0]),
    st.sampled_from([-2.0, 0.0, 1.1]),
    st.sampled_from([1.0, 1.3, 0.7]),
)
def test_penalties_are_openais_over_the_output_after_the_repetition_penalty(
    output: list[int], frequency: float, presence: float, repetition: float
) -> None:
    one = having(
        output,
        [1, 2, 2],
        frequency_penalty=frequency,
        presence_penalty=presence,
        repetition_penalty=repetition,
    )
    logits = random_logits(1, seed=len(output))
    counts = np.bincount(output, minlength=VOCAB_SIZE)
    penalised: Any = RepetitionPenaltyLogitsProcessor(repetition)(ids(one), logits.clone())
    expected = penalised[0].numpy() - frequency * counts - presence * (counts > 0)
    np.testing.assert_allclose(changed(logits, one)[0].numpy(), expected, rtol=1e-6, atol=1e-6)


def test_a_small_penalty_is_not_rounded_away_in_half_precision() -> None:
    logits = torch.full((1, VOCAB_SIZE), 40.0, dtype=torch.bfloat16)
    assert sample(Sampler([]), logits, [having([0], presence_penalty=0.01)]) == [1]


@pytest.mark.parametrize("penalty", [1e-300, 1e-38, 1e38, 1e300])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_extreme_penalty_gives_a_token_all_the_same(penalty: float, temperature: float) -> None:
    rows = [
        having([3, 4], [1, 2], repetition_penalty=penalty, temperature=temperature),
        having([], temperature=0.0),
    ]
    logits = random_logits(2)
    tokens = sample(Sampler([]), logits, rows)
    assert tokens[1] == int(logits[1].argmax())
    assert not changed(logits, *rows).isnan().any()


WORDS = st.lists(
    st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12
)


@settings(max_examples=100, deadline=None)
@given(WORDS, st.lists(st.integers(0, 5), max_size=12))
def test_bad_words_are_never_completed_as_in_transformers(
    words: list[tuple[int, ...]], output: list[int]
) -> None:
    """With token ids so few that many words match; the prompt is long enough for transformers."""
    one = having(output, [5, 0, 1, 5, 0], bad_token_ids=tuple(words))
    logits = random_logits(1)
    banned = [list(word) for word in words if word != (EOS,)]
    expected: Any = logits
    if banned:
        expected = NoBadWordsLogitsProcessor(banned, eos_token_id=EOS)(ids(one), logits.clone())
    assert torch.equal(changed(logits, one), expected)


def test_a_bad_word_can_begin_in_the_prompt_but_not_in_an_encoders() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    rows = [
        having([], [8, 6], bad_token_ids=((6, 0),)),
        having([], [2], bad_token_ids=((6, 0),), source=text_source([8, 6])),
    ]
    assert sample(Sampler([]), logits, rows) == [1, 0]


def test_words_of_tokens_that_the_model_lacks_are_left_alone() -> None:
    one = having(
        [], bad_token_ids=((VOCAB_SIZE,), (1, 99)), logit_bias=((VOCAB_SIZE + 3, 1.0),),
        stop_token_ids=(1000,), min_tokens=3,
    )  # fmt: skip
    logits = random_logits(1)
    expected = logits.clone()
    expected[0, EOS] = float("-inf")
    assert torch.equal(changed(logits, one), expected)


def test_a_bias_is_added_as_transformers_does() -> None:
    bias = ((2, 1.5), (9, -100.0), (VOCAB_SIZE - 1, 100.0))
    logits = random_logits(3)
    rows = [having([4], logit_bias=bias), having([4]), having([4], logit_bias=bias[:1])]
    result = changed(logits, *rows)
    for row in (0, 2):
        listed: Any = [[[token], value] for token, value in rows[row].params.logit_bias]
        expected: Any = SequenceBiasLogitsProcessor(listed)(ids(rows[row]), logits[row : row + 1])
        assert torch.equal(result[row], expected[0])
    assert torch.equal(result[1], logits[1])


def test_ends_are_withheld_until_min_tokens() -> None:
    ends = (EOS, EOS + 1, 20)
    for length in range(4):
        one = having([7] * length, [1, 2], min_tokens=2, stop_token_ids=(20,))
        logits = random_logits(1)
        expected: Any = MinNewTokensLengthLogitsProcessor(2, 2, list(ends))(
            ids(one), logits.clone()
        )
        assert torch.equal(changed(logits, one, eos=(EOS, EOS + 1)), expected)
    ignoring = having([], min_tokens=2, stop_token_ids=(20,), ignore_eos=True)
    assert changed(random_logits(1), ignoring).isinf().nonzero()[:, 1].tolist() == [20]


def test_a_row_of_nothing_but_bad_words_harms_no_neighbour() -> None:
    everything = tuple((token,) for token in range(VOCAB_SIZE))
    logits = random_logits(3)
    rows = [
        having([], bad_token_ids=everything, temperature=1.0, top_p=0.5, num_logprobs=2),
        having([]),
        having([], bad_token_ids=everything),
    ]
    tokens = sample(Sampler([]), logits, rows)
    assert tokens[1] == int(logits[1].argmax())
    assert all(0 <= token < VOCAB_SIZE for token in tokens)


def test_a_batch_without_such_options_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [having([4]), having([5], temperature=1.0, top_k=3, stop_token_ids=(4,), seed=1)]
    logits = random_logits(2)
    before = logits.clone()
    monkeypatch.setattr(LogitsProcessors, "apply", None)
    sample(Sampler([EOS]), logits, rows)
    assert torch.equal(logits, before)


def test_tokens_that_are_not_allowed_never_come_whatever_a_bias_says() -> None:
    logits = random_logits(2)
    limited = having([], allowed_token_ids=(3, 9), logit_bias=((9, 2.0), (4, 100.0)))
    found = changed(logits, limited, having([]))
    expected = torch.full_like(logits[0], float("-inf"))
    expected[[3, 9]] = logits[0, [3, 9]] + torch.tensor([0.0, 2.0])
    assert found[0].tolist() == expected.tolist()
    assert found[1].tolist() == logits[1].tolist()

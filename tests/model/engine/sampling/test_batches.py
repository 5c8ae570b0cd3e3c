"""Tokens of a batch whose sequences come and go are those of each sequence alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_triton.text_generation.sampling.sampler import Sampler
from hf_triton.text_generation.sequence.sequence import Sequence, TokenLogprobs
from hf_triton.text_generation.structured.constraint import Constraint
from hf_triton.text_generation.structured.grammar import Grammar
from tests.model.engine.sampling.test_sampling import EOS, random_logits, sequence

NUM_STEPS = 9
Token = tuple[int, TokenLogprobs | None]
EVERYTHING = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.7, 1.5]),
        "top_k": st.sampled_from([0, 1, 3, 39]),
        "top_p": st.sampled_from([0.0, 0.5]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.5, 3.0]),
        "frequency_penalty": st.sampled_from([-2.0, 0.5]),
        "presence_penalty": st.sampled_from([-0.5, 2.0]),
        "min_tokens": st.integers(0, 4),
        "stop_token_ids": st.sampled_from([(), (4, 9)]),
        "bad_token_ids": st.sampled_from([(), ((5,), (6, 7)), ((8,),) * 2]),
        "logit_bias": st.sampled_from([(), ((3, 5.0), (11, -100.0))]),
        "num_logprobs": st.sampled_from([None, 0, 3]),
        "ignore_eos": st.booleans(),
    },
)


class EveryThird(Grammar):
    """Allows a third of the tokens, another after each."""

    def __init__(self) -> None:
        self.last, self.is_complete, self.is_late = 0, False, False
        self.may_end = True

    def __del__(self) -> None:
        pass

    def mask(self) -> bytes:
        assert not self.is_late
        allowed = [(token + self.last) % 3 == 0 for token in range(128)]
        return np.packbits(allowed, bitorder="little").tobytes()

    @property
    def is_ready(self) -> bool:
        return True

    def tell(self, token_id: int) -> None:
        """It is followed in no time."""

    def follow(self, token_id: int) -> None:
        assert (token_id + self.last) % 3 == 0
        self.last = token_id


def made(options: dict[str, Any], seed: int, *, is_held: bool) -> Sequence:
    constraint = Constraint("regex", ("any",)) if is_held else None
    one = sequence([5, 6, 5], **{"seed": seed, **options, "constraint": constraint})
    one.grammar = EveryThird() if is_held else None
    return one


def logits_of(number: int, one: Sequence) -> torch.Tensor:
    """(1, vocab): another for each token of each sequence, so flat that tokens repeat."""
    return random_logits(1, seed=1000 * number + len(one.token_ids)) / 3


def alone(one: Sequence, number: int) -> list[Token]:
    sampler, tokens = Sampler([EOS]), []
    for _ in range(NUM_STEPS):
        [token_id], logprobs = sampler.sample(logits_of(number, one), [one])
        one.append(token_id, frozenset())
        tokens.append((token_id, logprobs.get(0)))
    return tokens


def together(sequences: list[Sequence], chance: random.Random) -> list[list[Token]]:
    """Sequences are left out of steps as preempted ones are, and of sampling as those are whose
    grammar is late.
    """
    sampler = Sampler([EOS])
    tokens: dict[Sequence, list[Token]] = {one: [] for one in sequences}
    while min(map(len, tokens.values())) < NUM_STEPS:
        running = [one for one in sequences if chance.random() < 0.8] or sequences[:1]
        logits = torch.cat([logits_of(sequences.index(one), one) for one in running])
        late = {one for one in running if chance.random() < 0.1}
        for one in running:
            if isinstance(one.grammar, EveryThird):
                one.grammar.is_late = one in late
        token_ids, logprobs = sampler.sample(logits, running, late)
        for row, (one, token_id) in enumerate(zip(running, token_ids, strict=True)):
            if one not in late:
                one.append(token_id, frozenset())
                tokens[one].append((token_id, logprobs.get(row)))
    return [tokens[one][:NUM_STEPS] for one in sequences]


MIXES = st.lists(st.tuples(EVERYTHING, st.booleans()), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(MIXES, st.integers(0, 2**16))
def test_no_token_depends_on_its_neighbours_or_on_steps_that_leave_it_out(
    mixes: list[tuple[dict[str, Any], bool]], seed: int
) -> None:
    def batch() -> list[Sequence]:
        return [made(options, seed + n, is_held=held) for n, (options, held) in enumerate(mixes)]

    found = together(batch(), random.Random(seed))
    for number, one in enumerate(batch()):
        expected = alone(one, number)
        for (token_id, mine), (other_id, other) in zip(found[number], expected, strict=True):
            assert token_id == other_id
            assert (mine is None) == (other is None)
            if mine is not None and other is not None:
                assert mine.logprob == pytest.approx(other.logprob, abs=1e-5)
                assert mine.rank == other.rank
                assert len(mine.alternatives) == len(other.alternatives)

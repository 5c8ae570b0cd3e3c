"""Tokens are the same whether the host has read a sequence's last one when the next is prepared."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_triton.text_generation.sampling.sampler import Sampled, Sampler
from hf_triton.text_generation.sequence.sequence import Sequence, Token
from hf_triton.text_generation.structured.constraint import Constraint
from hf_triton.text_generation.structured.grammar import Grammar
from tests.model.engine.sampling.test_sampling import (
    EOS,
    EVERYTHING,
    VOCAB_SIZE,
    random_logits,
    sequence,
)

NUM_STEPS = 9


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
    return random_logits(1, seed=1000 * number + one.num_sampled_tokens) / 3


def alone(one: Sequence, number: int) -> list[Token]:
    sampler, tokens = Sampler([EOS]), []
    for _ in range(NUM_STEPS):
        tokens += sampler.sample(logits_of(number, one), [one])
        one.append(tokens[-1], frozenset())
    return tokens


def one_step_ahead(sequences: list[Sequence], chance: random.Random) -> list[list[Token]]:
    """Sequences are left out of steps as preempted ones are, and of sampling as those are whose
    grammar is late.
    """
    sampler, sampled, pending = (
        Sampler([EOS]),
        Sampled([], torch.zeros(0), torch.zeros(0)),
        dict[Sequence, int](),
    )
    tokens: dict[Sequence, list[Token]] = {one: [] for one in sequences}
    while min(map(len, tokens.values())) < NUM_STEPS:
        running = [one for one in sequences if chance.random() < 0.8] or sequences[:1]
        inputs = sampler.prepare(running, VOCAB_SIZE, pending)
        logits = torch.cat([logits_of(sequences.index(one), one) for one in running])
        read = sampled.read()
        for one, row in pending.items():
            one.num_pending = 0
            one.append(read[row], frozenset())
            tokens[one].append(read[row])
        late = {one for one in running if chance.random() < 0.1}
        for one in running:
            if isinstance(one.grammar, EveryThird):
                one.grammar.is_late = one in late
        if len(late) < len(running):
            sampled = sampler.launch(logits, inputs, late=late)
        pending = {one: row for row, one in enumerate(running) if one not in late}
        for one in pending:
            one.num_pending = 1
    return [tokens[one][:NUM_STEPS] for one in sequences]


MIXES = st.lists(st.tuples(EVERYTHING, st.booleans()), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(MIXES, st.integers(0, 2**16))
def test_no_token_depends_on_when_the_one_before_it_is_read(
    mixes: list[tuple[dict[str, Any], bool]], seed: int
) -> None:
    def batch() -> list[Sequence]:
        return [made(options, seed + n, is_held=held) for n, (options, held) in enumerate(mixes)]

    found = one_step_ahead(batch(), random.Random(seed))
    for number, one in enumerate(batch()):
        expected = alone(one, number)
        assert [token.id for token in found[number]] == [token.id for token in expected]
        for token, other in zip(found[number], expected, strict=True):
            assert (token.logprobs is None) == (other.logprobs is None)
            if token.logprobs is not None and other.logprobs is not None:
                assert token.logprobs.logprob == pytest.approx(other.logprobs.logprob, abs=1e-5)
                assert token.logprobs.rank == other.logprobs.rank
                assert len(token.logprobs.alternatives) == len(other.logprobs.alternatives)


def test_the_tokens_of_a_forgotten_sequence_are_not_the_next_one_s() -> None:
    sampler, lasting = Sampler([]), sequence([4, 5], frequency_penalty=2.0, max_tokens=300)
    for _ in range(3):
        rows = [lasting, sequence([4, 5], frequency_penalty=2.0)]
        for step in range(50):
            tokens = sampler.sample(torch.zeros(2, VOCAB_SIZE), rows)
            assert tokens[1].id == step % VOCAB_SIZE  # each of them once before any comes again
            for one, token in zip(rows, tokens, strict=True):
                one.append(token, frozenset())
        sampler.forget(rows[1])
    assert sampler._changes._penalties._tokens.shape == (2, 64)

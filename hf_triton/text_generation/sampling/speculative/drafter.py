"""Decides which sequences draft how many tokens in a step, and what of them was right.

Drafts are for steps of decodes alone. The proposer says what may come next and how likely it is
right; what steps took says how many such tokens pay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from functools import lru_cache

from hf_triton.text_generation.engine.step import Draft, Step
from hf_triton.text_generation.engine.step_times import StepTimes
from hf_triton.text_generation.sequence.sequence import NO_TOKEN, Sequence, Token

from .ngram_proposer import NgramProposer

_LEAST_COST = 0.02

Grow = Callable[[Sequence, int], bool]


class Drafter:
    """Drafts at most ``num_speculative_tokens`` of a sequence, in steps of at most
    ``max_num_rows`` rows of logits.
    """

    def __init__(
        self,
        proposer: NgramProposer,
        step_times: StepTimes,
        num_speculative_tokens: int,
        max_num_rows: int,
    ) -> None:
        self._proposer, self._step_times = proposer, step_times
        self._most = num_speculative_tokens
        self._max_num_rows = max_num_rows

    @property
    def description(self) -> str:
        """For the load's log line."""
        return f"speculates by ngram up to {self._most} tokens"

    def wants(self, running: Items[Sequence]) -> bool:
        """Whether drafts may pay in a step in which these decode."""
        return bool(self._lengths(running))

    def draft(self, step: Step, grow: Grow) -> None:
        """Adds drafts to a step whose last tokens are all read; ``grow`` makes room for so many
        tokens in all of a sequence.
        """
        if step.prefills or not step.decodes:
            return
        lengths = self._lengths(step.decodes)
        room = self._max_num_rows - len(step.decodes)
        fitting = {}
        for sequence, length in lengths.items():
            num_tokens = min(length, room)
            if num_tokens > 0 and grow(sequence, sequence.num_computed_tokens + num_tokens):
                fitting[sequence] = num_tokens
                room -= num_tokens
        if fitting:
            proposed = self._proposer.propose(fitting)
            step.drafts.extend(Draft(sequence, ids) for sequence, ids in proposed.items() if ids)

    def follow(self, sequence: Sequence, tokens: Iterable[Token]) -> None:
        if _may_draft(sequence):
            self._proposer.follow(sequence, [token.id for token in tokens])

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept for a finished sequence."""
        self._proposer.forget(sequence)

    def _lengths(self, decodes: Items[Sequence]) -> dict[Sequence, int]:
        """How many tokens to draft of each that drafts."""
        cost = self._step_times.cost_of_token(len(decodes))
        if cost is None:
            return {}
        found = {}
        for sequence in decodes:
            rate = 0.0 if sequence.is_alone else self._proposer.rate(sequence)
            length = best_length(round(max(_LEAST_COST, cost), 2), round(rate, 2), self._most)
            if (length := min(length, sequence.num_tokens_left - 1)) > 0:
                found[sequence] = length
        return found


@lru_cache(maxsize=4096)
def best_length(cost: float, rate: float, most: int) -> int:
    """The number of drafted tokens with the most tokens for their time. Each costs ``cost`` of what
    a decoded one does, number i is accepted with probability rate^i, and one token comes without
    drafts (https://arxiv.org/abs/2211.17192, section 3.3).
    """
    length, chance, expected, time = 0, rate, 1.0, 1.0
    while length < most and chance * time > cost * expected:
        length, expected, time = length + 1, expected + chance, time + cost
        chance *= rate
    return length


def runs_of(
    rows: Items[Sequence], tokens: Items[Token], drafts: Items[Draft]
) -> dict[Sequence, list[Token]]:
    """The tokens that each sequence goes on with: of a step's ``rows`` and the token sampled for
    each, up to the first that is not the drafted one, or is none: that may be the fault of a
    drafted one.
    """
    first = len(rows) - sum(len(draft.token_ids) for draft in drafts)
    runs = {sequence: [token] for sequence, token in zip(rows[:first], tokens, strict=False)}
    for draft in drafts:
        run = runs[draft.sequence]
        for token_id, token in zip(draft.token_ids, tokens[first:], strict=False):
            if run[-1].id != token_id or token.id == NO_TOKEN:
                break
            run.append(token)
        first += len(draft.token_ids)
    return runs


def _may_draft(sequence: Sequence) -> bool:
    """Whether nothing that its tokens depend on changes from one drafted token to the next."""
    params = sequence.params
    return not params.changes_logits and sequence.continues_prompt and sequence.source is None

"""Decides which sequences draft how many tokens in a step, and what of them was right.

Drafts are for steps of decodes alone. The proposer says what may come next; ``Costs`` says whether
that pays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items

from hf_triton.text_generation.engine.step import Draft, Step
from hf_triton.text_generation.sequence.sequence import NO_TOKEN, Sequence, Token

from .costs import Costs
from .ngram_proposer import NgramProposer

_TRIED = 2  # tokens of a sequence

Grow = Callable[[Sequence, int], bool]


class Drafter:
    """Drafts at most ``num_speculative_tokens`` of a sequence, in steps of at most
    ``max_num_rows`` rows of logits. With ``async_scheduling``, what a step took is known only
    between two of a kind.
    """

    def __init__(
        self,
        proposer: NgramProposer,
        num_speculative_tokens: int,
        max_num_rows: int,
        *,
        async_scheduling: bool = False,
    ) -> None:
        self.costs = Costs()
        self._proposer = proposer
        self._most = num_speculative_tokens
        self._max_num_rows = max_num_rows
        self._async_scheduling = async_scheduling
        self._is_trying = False
        self._last_was_drafted: bool | None = None  # None: it was no step of decodes alone
        self._ended_s = 0.0

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

    def ended(self, step: Step) -> None:
        """The engine has done all that it does in a step."""
        now = time.perf_counter()
        seconds, self._ended_s = now - self._ended_s, now
        if step.prefills or not step.decodes:
            self._last_was_drafted = None
            return
        is_drafted = bool(step.drafts)
        is_known = self._last_was_drafted in (
            (is_drafted,) if self._async_scheduling else (True, False)
        )
        self._last_was_drafted = is_drafted
        if is_known:
            num_drafted = sum(len(draft.token_ids) for draft in step.drafts)
            self.costs.note(len(step.decodes), num_drafted, seconds)
            self._is_trying = self._is_trying and not is_drafted

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept for a finished sequence."""
        self._proposer.forget(sequence)

    def _lengths(self, decodes: Items[Sequence]) -> dict[Sequence, int]:
        """How many tokens to draft of each that drafts."""
        num_seqs = len(decodes)
        if not self.costs.has_plain(num_seqs):
            return {}
        rates = {s: rate for s in decodes if not s.is_alone and (rate := self._proposer.rate(s))}
        lengths = {
            sequence: min(length, sequence.num_tokens_left - 1)
            for sequence, rate in rates.items()
            if (length := self.costs.best_length(num_seqs, rate, self._most))
            and sequence.num_tokens_left > 1
        }
        if lengths:
            self.costs.pays(num_seqs)
            return lengths
        return self._trial(num_seqs, rates)

    def _trial(self, num_seqs: int, rates: dict[Sequence, float]) -> dict[Sequence, int]:
        """A few drafts where they did not pay."""
        likely = [sequence for sequence in rates if sequence.num_tokens_left > _TRIED]
        if not likely or not (self._is_trying or self.costs.is_trial(num_seqs)):
            return {}
        self._is_trying = True
        return dict.fromkeys(likely[: -(-num_seqs // (2 * _TRIED))], min(_TRIED, self._most))


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

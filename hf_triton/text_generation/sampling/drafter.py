"""Drafts tokens by prompt look-up: what a text goes on with was often said in it before.

The last tokens of prompt and output are looked up where they stood last, and what followed them
there is proposed (https://github.com/apoorvumang/prompt-lookup-decoding), as much of it as pays by
what steps took. Drafts are for steps of decodes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from functools import lru_cache

from hf_triton.text_generation.engine.step import Draft, Step
from hf_triton.text_generation.engine.step_times import StepTimes
from hf_triton.text_generation.sequence.sequence import NO_TOKEN, Sequence

_LENGTHS = (4, 3, 2)  # of the ends of texts that are looked up
_LEAST_COST = 0.02
_FIRST_RATE = 0.5
_WEIGHT, _WEIGHT_OF_ALL = 1 / 8, 1 / 64  # of the last token, in rates


class Drafter:
    """Drafts at most ``num_speculative_tokens`` of a sequence, in steps of at most ``max_num_rows``
    rows of logits.
    """

    def __init__(
        self, step_times: StepTimes, num_speculative_tokens: int, max_num_rows: int
    ) -> None:
        self._step_times, self._num_speculative_tokens = step_times, num_speculative_tokens
        self._max_num_rows = max_num_rows
        self._usual_rate = _FIRST_RATE  # a new sequence's

    def draft(self, step: Step, grow: Callable[[Sequence, int], bool]) -> None:
        """Adds drafts to a step; ``grow`` makes room for them."""
        cost = None if step.prefills else self._step_times.cost_of_token(len(step.decodes))
        if cost is None:
            return
        room, most = self._max_num_rows - len(step.decodes), self._num_speculative_tokens
        for sequence in step.decodes:
            rate = 0.0 if sequence.is_alone else self.rate(sequence)
            length = best_length(round(max(_LEAST_COST, cost), 2), round(rate, 2), most)
            num_tokens = min(length, sequence.num_tokens_left - 1, room)
            if num_tokens > 0 and grow(sequence, sequence.num_computed_tokens + num_tokens):
                room -= num_tokens
                token_ids = self.propose(sequence, num_tokens)
                if token_ids:
                    step.drafts.append(Draft(sequence, token_ids))

    def add(self, sequence: Sequence, token_ids: Iterable[int]) -> None:
        """Takes the last tokens of a sequence. How often its own text says what comes next is known
        without computing anything, whether that was drafted or not.
        """
        params = sequence.params
        if params.changes_logits or not sequence.continues_prompt or sequence.source is not None:
            return
        ngrams = sequence.kept.get(Ngrams)
        if ngrams is None:
            known = sequence.prompt_token_ids + sequence.token_ids
            sequence.kept[Ngrams] = Ngrams(known, self._usual_rate)
            return
        for token_id in token_ids:
            was_right = ngrams.append(token_id)
            if was_right is not None:
                ngrams.rate += _WEIGHT * (was_right - ngrams.rate)
                self._usual_rate += _WEIGHT_OF_ALL * (was_right - self._usual_rate)

    def rate(self, sequence: Sequence) -> float:
        """The chance that the next proposed token is right; 0 where there is none."""
        ngrams = sequence.kept.get(Ngrams)
        return ngrams.rate if ngrams is not None and ngrams.has_proposal else 0.0

    def propose(self, sequence: Sequence, num_tokens: int) -> list[int]:
        ngrams: Ngrams = sequence.kept[Ngrams]
        return ngrams.propose(num_tokens)


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


def accepted_rows(
    rows: Items[Sequence], token_ids: Items[int], drafts: Items[Draft]
) -> dict[Sequence, list[int]]:
    """The rows whose tokens each sequence goes on with: of a step's ``rows`` and the token sampled
    for each, up to the first that is not the drafted one, or is none: that may be the fault of a
    drafted one.
    """
    first = len(rows) - sum(len(draft.token_ids) for draft in drafts)
    runs = {sequence: [row] for row, sequence in enumerate(rows[:first])}
    for draft in drafts:
        run = runs[draft.sequence]
        for row, drafted_id in enumerate(draft.token_ids, first):
            if token_ids[run[-1]] != drafted_id or token_ids[row] == NO_TOKEN:
                break
            run.append(row)
        first += len(draft.token_ids)
    return runs


class Ngrams:
    """Finds where the last two to four tokens of a text stood before: the most of them, and of
    several places the last one. A token costs a few look-ups, however long the text is. ``rate`` is
    how often a proposed token is right.
    """

    def __init__(self, token_ids: Items[int], rate: float = 0.0) -> None:
        self._tokens, self.rate = list(token_ids), rate
        # By n-gram, the index after the last place where it stood, but for the text's end.
        self._places: dict[tuple[int, ...], int] = {}
        self._next = 0  # the index of the token that followed; 0: none
        for length in _LENGTHS:
            grams = zip(*(self._tokens[first:] for first in range(length)), strict=False)
            ends = range(length, len(self._tokens))
            self._places.update(zip(grams, ends, strict=False))
        self._look_up()

    def append(self, token_id: int) -> bool | None:
        """Adds a token; True if it was the next proposed one, None if none was proposed."""
        tokens, found = self._tokens, None
        if self._next:
            found = tokens[self._next] == token_id
            self._next = self._next + 1 if found else 0
        for length in _LENGTHS:
            if length <= len(tokens):
                self._places[tuple(tokens[-length:])] = len(tokens)
        tokens.append(token_id)
        if not self._next:
            self._look_up()
        return found

    @property
    def has_proposal(self) -> bool:
        return self._next > 0

    def propose(self, num_tokens: int) -> list[int]:
        """The tokens that may come next; at the end of the text they are repeated."""
        if not self._next:
            return []
        proposed = self._tokens[self._next : self._next + num_tokens]
        period = len(self._tokens) - self._next
        while len(proposed) < num_tokens:
            proposed.append(proposed[len(proposed) - period])
        return proposed

    def _look_up(self) -> None:
        ends = (tuple(self._tokens[-length:]) for length in _LENGTHS)
        self._next = next((self._places[end] for end in ends if end in self._places), 0)

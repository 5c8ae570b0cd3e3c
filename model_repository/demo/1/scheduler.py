"""Decides what each step computes: which sequences decode, which prompts (or chunks of one) are
prefilled.

Knows slots as numbers and tokens as counts; never touches a tensor, a model or Triton.

Slots stay compact, so that a decode step reads one contiguous view of the cache: the running
sequences hold slots ``0 .. n-1`` in order, and a prompt that is only partly prefilled holds slot
``n``. Prompts are taken in order of arrival and one is admitted only while the step has tokens
left, so there is at most one such prompt between steps. When a sequence finishes, the last one's
rows move into the hole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .sequence import Sequence


@dataclass(frozen=True)
class PrefillChunk:
    """Tokens ``start .. end-1`` of a prompt; the last chunk of a prompt gives its first output
    token.
    """

    sequence: Sequence
    start: int
    end: int

    @property
    def is_last(self) -> bool:
        return self.end == self.sequence.num_prompt_tokens


@dataclass(frozen=True)
class Move:
    """Copy the first ``num_tokens`` of slot ``source`` to slot ``target``."""

    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True)
class Step:
    """What to compute: one token for each of ``decodes`` (in slot order), then the chunks of
    ``prefills``.
    """

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[PrefillChunk] = field(default_factory=list)

    @property
    def sampled(self) -> list[Sequence]:
        """The sequences that get a token from this step, in the order of the step's logits."""
        return self.decodes + [chunk.sequence for chunk in self.prefills if chunk.is_last]

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(chunk.end - chunk.start for chunk in self.prefills)


class Scheduler:
    """First come, first served, within ``max_num_seqs`` slots and ``max_num_batched_tokens`` a
    step.
    """

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._partial: Sequence | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self._partial)

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queues sequences behind those that wait already."""
        self.waiting.extend(sequences)

    def schedule(self) -> Step:
        """Every running sequence decodes one token; what is left of the step's tokens goes to
        prompts.
        """
        decodes = list(self.running)
        budget = self.max_num_batched_tokens - len(decodes)
        prefills: list[PrefillChunk] = []
        while budget > 0:
            sequence = self._partial or self._admit()
            if sequence is None:
                break
            start = sequence.num_computed_tokens
            chunk = PrefillChunk(sequence, start, min(sequence.num_prompt_tokens, start + budget))
            budget -= chunk.end - chunk.start
            self._prefilled(chunk)
            prefills.append(chunk)
        for sequence in decodes:
            sequence.num_computed_tokens += 1
        return Step(decodes, prefills)

    def retire(self, finished: Iterable[Sequence]) -> list[Move]:
        """Takes sequences out of the batch; returns the copies that close the holes they leave, in
        order.
        """
        moves: list[Move] = []
        for sequence in finished:
            last = self.running.pop()
            if last is not sequence:
                self.running[sequence.slot] = last
                moves.append(Move(last.slot, sequence.slot, last.num_computed_tokens))
                last.slot = sequence.slot
        partial = self._partial
        if partial is not None and partial.slot != len(self.running):
            moves.append(Move(partial.slot, len(self.running), partial.num_computed_tokens))
            partial.slot = len(self.running)
        return moves

    def drain_running(self) -> list[Sequence]:
        """Takes out every sequence that holds a slot; those that wait go on waiting."""
        partial = [self._partial] if self._partial else []
        sequences = self.running + partial
        self.running, self._partial = [], None
        return sequences

    def drain(self) -> list[Sequence]:
        """Empties the scheduler; returns every sequence that was in it."""
        sequences = self.drain_running() + list(self.waiting)
        self.waiting.clear()
        return sequences

    def _admit(self) -> Sequence | None:
        if not self.waiting or len(self.running) == self.max_num_seqs:
            return None
        sequence = self.waiting.popleft()
        sequence.slot = len(self.running)
        self._partial = sequence
        return sequence

    def _prefilled(self, chunk: PrefillChunk) -> None:
        """Books a chunk: a prompt that ends with it runs from the next step on, in its slot."""
        chunk.sequence.num_computed_tokens = chunk.end
        if chunk.is_last:
            self.running.append(chunk.sequence)
            self._partial = None

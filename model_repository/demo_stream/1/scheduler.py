"""Decides what each step computes: which sequences decode, which prompts (or chunks of one) are
prefilled.

Knows slots as numbers and tokens as counts; never touches a tensor, a model or Triton.

Slots stay compact, so that a decode step reads one contiguous view of the cache: the running
sequences hold slots ``0 .. n-1``. A prompt that is computed over several steps holds the last slot
of all meanwhile; there is at most one. After a step, rows move into the holes that finished
sequences leave and to where a finished prompt belongs.

Long and short prompts wait in two lines, each in order of arrival: while a long prompt is computed
it gets at least half of what a step has for prompts, and short ones share the rest. So short ones
don't wait for a flood of long ones, nor long ones for a flood of short ones.
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
    """Fills ``max_num_seqs`` slots and computes at most ``max_num_batched_tokens`` a step."""

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.running: list[Sequence] = []
        self._longest_short = max_num_batched_tokens // 2
        self._short: deque[tuple[int, Sequence]] = deque()  # (order of arrival, sequence)
        self._long: deque[tuple[int, Sequence]] = deque()
        self._num_arrived = 0
        self._partial: Sequence | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._partial or self._short or self._long)

    @property
    def num_waiting(self) -> int:
        return len(self._short) + len(self._long)

    @property
    def holding_slots(self) -> list[Sequence]:
        """Every sequence that holds a slot."""
        return self.running + ([self._partial] if self._partial else [])

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queues sequences behind those of their line that wait already."""
        for sequence in sequences:
            is_short = sequence.num_prompt_tokens <= self._longest_short
            line = self._short if is_short else self._long
            line.append((self._num_arrived, sequence))
            self._num_arrived += 1

    def schedule(self) -> Step:
        """Every running sequence decodes one token; what is left of the step's tokens goes to
        prompts.
        """
        decodes = list(self.running)
        prefills = self._prefills(self.max_num_batched_tokens - len(decodes))
        for sequence in decodes:
            sequence.num_computed_tokens += 1
        return Step(decodes, prefills)

    def retire(self, finished: Iterable[Sequence]) -> list[Move]:
        """Takes sequences out, whether they run or wait; returns the copies that close the holes
        they leave. Called between steps, and after every step that ends a prompt.
        """
        gone = set(finished)
        if gone.difference(self.holding_slots):
            self._short = deque(item for item in self._short if item[1] not in gone)
            self._long = deque(item for item in self._long if item[1] not in gone)
        if self._partial in gone:
            self._partial = None
        self._close_holes(gone)
        moves = []
        for slot, sequence in enumerate(self.running):
            if sequence.slot != slot:
                moves.append(Move(sequence.slot, slot, sequence.num_computed_tokens))
                sequence.slot = slot
        return moves

    def drain_running(self) -> list[Sequence]:
        """Takes out every sequence that holds a slot; those that wait go on waiting."""
        sequences = self.holding_slots
        self.running, self._partial = [], None
        return sequences

    def drain(self) -> list[Sequence]:
        """Empties the scheduler; returns every sequence that was in it."""
        waiting = sorted((*self._short, *self._long), key=lambda item: item[0])
        self._short.clear()
        self._long.clear()
        return self.drain_running() + [sequence for _, sequence in waiting]

    @property
    def _num_free(self) -> int:
        return self.max_num_seqs - len(self.running) - (self._partial is not None)

    def _prefills(self, budget: int) -> list[PrefillChunk]:
        """Chunks of at most ``budget`` tokens together."""
        chunks: list[PrefillChunk] = []
        is_parked = self._partial is not None  # in the last slot, until the step is over
        if not is_parked:
            self._begin_long()
        reserved = -(-budget // 2) if self._partial else 0
        while self._short and self._num_free and budget > reserved:
            sequence = self._short[0][1]
            if sequence.num_prompt_tokens > budget - reserved:
                break
            self._short.popleft()
            budget -= self._admit(sequence, chunks)
        if self._partial is None and self._short and self._num_free and budget:
            self._partial = self._short.popleft()[1]  # nothing longer is under way
        while self._partial is not None and budget:
            budget -= self._continue(self._partial, budget, chunks)
            if self._partial is None and (not is_parked or self._fits_beside_parked(budget)):
                self._begin_long()
        return chunks

    def _begin_long(self) -> None:
        """Starts the oldest long prompt, unless a short one came first and wants the last slot."""
        if not self._long or not self._num_free:
            return
        if self._num_free > 1 or not self._short or self._long[0][0] < self._short[0][0]:
            self._partial = self._long.popleft()[1]

    def _fits_beside_parked(self, budget: int) -> bool:
        """Whether the oldest long prompt can be computed whole, in another slot than the last."""
        fits = bool(self._long) and self._long[0][1].num_prompt_tokens <= budget
        return fits and len(self.running) < self.max_num_seqs - 1

    def _admit(self, sequence: Sequence, chunks: list[PrefillChunk]) -> int:
        """Books a whole prompt in the next slot; returns its tokens."""
        sequence.slot = len(self.running)
        self.running.append(sequence)
        sequence.num_computed_tokens = sequence.num_prompt_tokens
        chunks.append(PrefillChunk(sequence, 0, sequence.num_prompt_tokens))
        return sequence.num_prompt_tokens

    def _continue(self, sequence: Sequence, budget: int, chunks: list[PrefillChunk]) -> int:
        """Books a chunk of the prompt under way; returns its tokens."""
        start = sequence.num_computed_tokens
        end = min(sequence.num_prompt_tokens, start + budget)
        if start == 0 and end == sequence.num_prompt_tokens:
            self._partial = None
            return self._admit(sequence, chunks)
        sequence.slot = self.max_num_seqs - 1
        sequence.num_computed_tokens = end
        chunks.append(PrefillChunk(sequence, start, end))
        if end == sequence.num_prompt_tokens:
            self.running.append(sequence)  # retire() moves it into its place after the step
            self._partial = None
        return end - start

    def _close_holes(self, gone: set[Sequence]) -> None:
        """The last running sequences take the places of those that are gone."""
        num_kept = sum(sequence not in gone for sequence in self.running)
        movers = iter([s for s in self.running[num_kept:] if s not in gone])
        for index in range(num_kept):
            if self.running[index] in gone:
                self.running[index] = next(movers)
        del self.running[num_kept:]

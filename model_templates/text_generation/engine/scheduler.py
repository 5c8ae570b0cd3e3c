"""Decides what each step computes: which sequences decode, which prompts (or chunks of one) are
prefilled.

Knows slots as numbers and tokens as counts; never touches a tensor, a model or Triton.

Slots stay compact, so that a decode step reads one contiguous view of the cache: the running
sequences hold slots ``0 .. n-1``. A prompt that is computed over several steps holds the last slot
of all meanwhile; there is at most one. After a step, rows move into the holes that finished
sequences leave and to where a finished prompt belongs.

A prompt that begins like what another slot holds starts with a copy of that (prefixes/); one that
begins like a prompt under way waits until it can.

Long and short prompts wait in two lines, each in order of arrival: while a long prompt is computed
it gets at least half of what a step has for prompts, and short ones share the rest. So short ones
don't wait for a flood of long ones, nor long ones for a flood of short ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..kv.slot_contents import SlotContents, SlotCopy
from ..sequence.sequence import Sequence


@dataclass(frozen=True)
class PrefillChunk:
    """Tokens ``start .. end-1`` of a prompt; the last chunk of a prompt gives its first output
    token.
    """

    sequence: Sequence
    start: int
    end: int

    @property
    def is_first(self) -> bool:
        return self.start == self.sequence.num_reused_tokens

    @property
    def is_last(self) -> bool:
        return self.end == self.sequence.num_prompt_tokens


@dataclass(frozen=True)
class Step:
    """What to compute: one token for each of ``decodes`` (in slot order), then the chunks of
    ``prefills``; ``copies`` come before both.
    """

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[PrefillChunk] = field(default_factory=list)
    copies: list[SlotCopy] = field(default_factory=list)

    @property
    def sampled(self) -> list[Sequence]:
        """The sequences that get a token from this step, in the order of the step's logits."""
        return self.decodes + [chunk.sequence for chunk in self.prefills if chunk.is_last]

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(chunk.end - chunk.start for chunk in self.prefills)


class Scheduler:
    """Fills ``max_num_seqs`` slots and computes at most ``max_num_batched_tokens`` a step. Shares
    prefixes where ``contents`` does.
    """

    def __init__(
        self, max_num_seqs: int, max_num_batched_tokens: int, contents: SlotContents | None = None
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.running: list[Sequence] = []
        self._longest_short = max_num_batched_tokens // 2
        self._short: deque[tuple[int, Sequence]] = deque()  # (order of arrival, sequence)
        self._long: deque[tuple[int, Sequence]] = deque()
        self._num_arrived = 0
        self._partial: Sequence | None = None
        self._contents = contents or SlotContents()
        self._copies: list[SlotCopy] = []  # of the step that is being made

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
            line = self._short if self._is_short(sequence) else self._long
            line.append((self._num_arrived, sequence))
            self._num_arrived += 1

    def schedule(self) -> Step:
        """Every running sequence decodes one token; what is left of the step's tokens goes to
        prompts.
        """
        self._contents.finish_step()
        decodes = list(self.running)
        prefills = self._prefills(self.max_num_batched_tokens - len(decodes))
        for sequence in decodes:
            sequence.num_computed_tokens += 1
        copies, self._copies = self._copies, []
        return Step(decodes, prefills, copies)

    def retire(self, finished: Iterable[Sequence]) -> list[SlotCopy]:
        """Takes sequences out, whether they run or wait; returns the copies that close the holes
        they leave. Called between steps, and after every step that ends a prompt.
        """
        gone = set(finished)
        for sequence in self.holding_slots if gone else ():
            if sequence in gone and sequence.slot >= 0:
                self._contents.release(sequence)
        if gone.difference(self.holding_slots):
            self._short = deque(item for item in self._short if item[1] not in gone)
            self._long = deque(item for item in self._long if item[1] not in gone)
        if self._partial in gone:
            self._partial = None
        self._close_holes(gone)
        copies = []
        for slot, sequence in enumerate(self.running):
            if sequence.slot != slot:
                copies += self._contents.move(sequence, slot)
        return copies

    def drain_running(self) -> list[Sequence]:
        """Takes out every sequence that holds a slot, and forgets what the slots hold; those that
        wait go on waiting.
        """
        sequences = self.holding_slots
        self.running, self._partial = [], None
        self._contents.clear()
        self._copies.clear()
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
        self._relegate()
        if not is_parked:
            self._begin_long()
        reserved = -(-budget // 2) if self._partial else 0
        budget -= self._admit_short(budget - reserved, chunks)
        if self._partial is None and self._short and self._num_free and budget:
            self._begin_head(self._short)  # nothing longer is under way
        while self._partial is not None and budget:
            budget -= self._continue(self._partial, budget, chunks)
            if self._partial is None and (not is_parked or self._fits_beside_parked(budget)):
                self._begin_long()
        return chunks

    def _relegate(self) -> None:
        """Takes the first of the short line to the long one where what made it short is gone."""
        if not self._short or not self._num_free:
            return
        head = self._short[0][1]
        if head.num_prompt_tokens > self._longest_short and not self._is_short(head):
            self._long.appendleft(self._short.popleft())

    def _is_short(self, sequence: Sequence) -> bool:
        num_coming = self._contents.find(sequence).num_coming
        return sequence.num_prompt_tokens - num_coming <= self._longest_short

    def _begin_long(self) -> None:
        """Starts the oldest long prompt, unless a short one came first and wants the last slot."""
        if not self._long or not self._num_free:
            return
        if self._num_free > 1 or not self._short or self._long[0][0] < self._short[0][0]:
            self._begin_head(self._long)

    def _begin_head(self, line: deque[tuple[int, Sequence]]) -> None:
        """Makes the first of a line the prompt under way, unless it had better wait."""
        if not self._contents.find(line[0][1]).is_worth_waiting_for:
            self._partial = line.popleft()[1]

    def _admit_short(self, budget: int, chunks: list[PrefillChunk]) -> int:
        """Books whole prompts of at most ``budget`` tokens together; returns their tokens."""
        num_tokens = 0
        held_back: list[tuple[int, Sequence]] = []  # for a step or a few; each keeps a slot free
        while self._short and self._num_free > len(held_back) and num_tokens < budget:
            sequence = self._short[0][1]
            shared = self._contents.find(sequence)
            if shared.is_worth_waiting_for:
                held_back.append(self._short.popleft())
                continue
            if sequence.num_prompt_tokens - shared.num_ready > budget - num_tokens:
                break
            self._short.popleft()
            num_tokens += self._admit(sequence, chunks)
        self._short.extendleft(reversed(held_back))
        return num_tokens

    def _fits_beside_parked(self, budget: int) -> bool:
        """Whether the oldest long prompt can be computed whole, in another slot than the last."""
        return (
            bool(self._long)
            and len(self.running) < self.max_num_seqs - 1
            and self._num_left(self._long[0][1]) <= budget
        )

    def _num_left(self, sequence: Sequence) -> int:
        """How many tokens of a prompt that waits are to be computed."""
        return sequence.num_prompt_tokens - self._contents.find(sequence).num_ready

    def _admit(self, sequence: Sequence, chunks: list[PrefillChunk]) -> int:
        """Books all of a prompt that is to be computed in the next slot; returns its tokens."""
        self._copies += self._contents.place(sequence, len(self.running))
        self.running.append(sequence)
        return self._book(sequence, sequence.num_prompt_tokens, chunks)

    def _continue(self, sequence: Sequence, budget: int, chunks: list[PrefillChunk]) -> int:
        """Books a chunk of the prompt under way; returns its tokens."""
        if sequence.slot < 0:
            if self._num_left(sequence) <= budget:
                self._partial = None
                return self._admit(sequence, chunks)
            self._copies += self._contents.place(sequence, self.max_num_seqs - 1)
        end = min(sequence.num_prompt_tokens, sequence.num_computed_tokens + budget)
        if end == sequence.num_prompt_tokens:
            self.running.append(sequence)  # retire() moves it into its place after the step
            self._partial = None
        return self._book(sequence, end, chunks)

    def _book(self, sequence: Sequence, end: int, chunks: list[PrefillChunk]) -> int:
        start, sequence.num_computed_tokens = sequence.num_computed_tokens, end
        self._contents.note_computed(sequence, end)
        chunks.append(PrefillChunk(sequence, start, end))
        return end - start

    def _close_holes(self, gone: set[Sequence]) -> None:
        """The last running sequences take the places of those that are gone."""
        num_kept = sum(sequence not in gone for sequence in self.running)
        movers = iter([s for s in self.running[num_kept:] if s not in gone])
        for index in range(num_kept):
            if self.running[index] in gone:
                self.running[index] = next(movers)
        del self.running[num_kept:]

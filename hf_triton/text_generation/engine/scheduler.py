"""Decides what each step computes: which sequences decode, which prompts (or chunks of one) are
prefilled.

Knows tokens as counts and asks ``space`` where there is room for their keys and values; never
touches a tensor, a model or Triton.

A prompt that begins like another starts with what that one has computed; where it is under way, the
prompt waits until it can.

Long and short prompts wait in two lines, each in order of priority and then of arrival: while a
long prompt is computed it gets at least half of what a step has for prompts, and short ones share
the rest. So short ones don't wait for a flood of long ones, nor long ones for a flood of short
ones. Room goes to who came
first.

What an encoder computes for a sequence (an image, a sound, the text that an encoder-decoder reads)
is computed in the step that begins it. A step encodes as many tokens as it may compute, or one
source that is longer.

Where a running sequence finds no room for its next token, the last one of that order is preempted
(https://arxiv.org/abs/2309.06180, section 4.5): it gives its room back, waits before those of its
line that came later, and all of its tokens are computed again. Prompts are started in no step that
preempts.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter

from ..memory.kv_cache_manager import KVCacheManager
from ..memory.pages import StateCopy
from ..sequence.sequence import Sequence
from .step import PrefillChunk, Step


class Scheduler:
    """Runs ``max_num_seqs`` sequences and computes at most ``max_num_batched_tokens`` a step.
    ``prompt_limit`` says how many tokens of prompts a step may compute beside the given decodes.
    Without ``chunked_prefill``, and
    of sequences with sources unless it ``cuts_sources``, a step that has tokens left computes all
    of the next prompt. Of prompts whose log-probabilities are wanted a step computes at most
    ``max_num_scored`` tokens: each has a row of logits.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        space: KVCacheManager,
        *,
        chunked_prefill: bool = True,
        cuts_sources: bool = True,
        max_num_scored: int | None = None,
        prompt_limit: Callable[[list[Sequence]], int] | None = None,
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self._max_num_scored = max_num_scored or max_num_batched_tokens
        self._num_scored = 0  # tokens, in the step that is being made
        self.max_num_batched_tokens = max_num_batched_tokens
        self.running: list[Sequence] = []
        self.num_preempted = 0
        self._longest_short = max_num_batched_tokens // 2
        self._chunked_prefill, self._cuts_sources = chunked_prefill, cuts_sources
        self._prompt_limit = prompt_limit
        self._short: deque[Sequence] = deque()
        self._long: deque[Sequence] = deque()
        self._num_arrived = 0
        self._partial: Sequence | None = None
        self._space = space
        self._copies: list[StateCopy] = []  # of the step that is being made
        self._num_encoded = 0  # tokens of sources, in the step that is being made

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._partial or self._short or self._long)

    @property
    def num_waiting(self) -> int:
        return len(self._short) + len(self._long)

    @property
    def waiting(self) -> Iterator[Sequence]:
        """Every sequence that is not started."""
        return chain(self._short, self._long)

    @property
    def num_prompts(self) -> int:
        """How many wait for their first token, whether they are begun or not."""
        return self.num_waiting + (self._partial is not None)

    @property
    def holding(self) -> list[Sequence]:
        """Every sequence that is started."""
        return self.running + ([self._partial] if self._partial else [])

    @property
    def all(self) -> list[Sequence]:
        """Every sequence that it has."""
        return [*self.holding, *self.waiting]

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queues sequences behind those of their line that wait already, and before those of a
        later priority.
        """
        for sequence in sequences:
            sequence.arrival = self._num_arrived
            self._num_arrived += 1
            self._queue(sequence)

    def schedule(self) -> Step:
        """Every running sequence decodes one token, if it may have more than those that are
        pending; what is left of the step's tokens goes to prompts.
        """
        self._space.finish_step()
        self._num_scored = 0
        unplaced = [s for s in (self._partial,) if s is not None and not s.num_computed_tokens]
        self._num_encoded = sum(sequence.num_source_tokens for sequence in unplaced)
        num_preempted = self.num_preempted
        decodes = self._decodes()
        prefills = []
        if num_preempted == self.num_preempted:
            most = self.max_num_batched_tokens - len(decodes)
            prefills = self._prefills(min(most, self._prompt_tokens(decodes)), most)
        for sequence in decodes:
            sequence.num_computed_tokens += 1
        copies, self._copies = self._copies, []
        return Step(decodes, prefills, copies)

    def retire(self, finished: Iterable[Sequence]) -> None:
        """Takes sequences out, whether they run or wait; called between steps."""
        gone = set(finished)
        for sequence in self.holding if gone else ():
            if sequence in gone:
                self._space.free(sequence)
        if gone.difference(self.holding):
            self._short = deque(sequence for sequence in self._short if sequence not in gone)
            self._long = deque(sequence for sequence in self._long if sequence not in gone)
        if self._partial in gone:
            self._partial = None
        if gone:
            self.running = [sequence for sequence in self.running if sequence not in gone]

    def discard(self, failed: Iterable[Sequence]) -> None:
        """As ``retire``, of sequences that the last step began and did not compute: nobody shares
        what they would have computed.
        """
        failed = list(failed)
        for sequence in failed:
            self._space.free_uncomputed(sequence)
        self.retire(failed)

    def expel(self, doubted: Iterable[Sequence]) -> None:
        """The same of sequences whose keys and values are in doubt, and of what they share."""
        doubted = list(doubted)
        for sequence in doubted:
            self._space.distrust(sequence)
        self.discard(doubted)

    def restart(self, doubted: Iterable[Sequence]) -> None:
        """The same, but they wait again: all of their tokens are computed anew, each sequence by
        itself.
        """
        doubted = list(doubted)
        self.expel(doubted)
        for sequence in doubted:
            sequence.preempt()
            sequence.is_alone = True
            self._queue(sequence)

    def drain_running(self) -> list[Sequence]:
        """Takes out every sequence that is started, and forgets what was computed; those that wait
        go on waiting.
        """
        sequences = self.holding
        self.running, self._partial = [], None
        self._space.clear()
        self._copies.clear()
        return sequences

    def drain(self) -> list[Sequence]:
        """Empties the scheduler; returns every sequence that was in it."""
        waiting = sorted((*self._short, *self._long), key=_order)
        self._short.clear()
        self._long.clear()
        return self.drain_running() + waiting

    @property
    def _num_free(self) -> int:
        return self.max_num_seqs - len(self.running) - (self._partial is not None)

    def _prompt_tokens(self, decodes: list[Sequence]) -> int:
        """How many tokens of prompts a step should compute beside these."""
        if not decodes or not self.num_prompts or self._prompt_limit is None:
            return self.max_num_batched_tokens
        return self._prompt_limit(decodes)

    def _for_short(self, budget: int, most: int) -> int:
        """How many tokens short prompts get: beside a long one, which may take many steps, at least
        what the first of them needs, for those are not cut.
        """
        if self._partial is None or not self._short:
            return budget
        head = self._short[0]
        num_needed = head.num_prefill_tokens - self._space.find(head).num_ready
        return max(budget, min(most, num_needed))

    def _decodes(self) -> list[Sequence]:
        """The running sequences that decode, each with room for its token."""
        decodes = [
            s for s in self.running if not s.num_pending or s.num_pending < s.num_tokens_left
        ]
        num_preempted = self.num_preempted
        for sequence in decodes:
            while sequence.num_computed_tokens and not self._grows(sequence):
                self._preempt(max(self.holding, key=_order))
        if num_preempted == self.num_preempted:
            return decodes
        return [sequence for sequence in decodes if sequence.num_computed_tokens]

    def _grows(self, sequence: Sequence) -> bool:
        return self._space.append(sequence, sequence.num_computed_tokens + 1)

    def _preempt(self, sequence: Sequence) -> None:
        """Takes a started sequence's room; it waits first in its line."""
        self._space.free(sequence)
        sequence.preempt()
        if sequence is self._partial:
            self._partial = None
        else:
            self.running.remove(sequence)
        self._queue(sequence)
        self.num_preempted += 1

    def _prefills(self, budget: int, most: int) -> list[PrefillChunk]:
        """Chunks of ``budget`` tokens together, at most ``most``."""
        chunks: list[PrefillChunk] = []
        self._relegate()
        self._begin_long(budget)
        reserved = -(-budget // 2) if self._partial else 0
        num_tokens = self._admit_short(self._for_short(budget - reserved, most - reserved), chunks)
        budget = max(reserved, budget - num_tokens)
        if self._partial is None and self._short and self._num_free and budget:
            self._begin_head(self._short, budget)  # nothing longer is under way
        while self._partial is not None and budget:
            num_tokens = self._continue(self._partial, budget, chunks)
            if not num_tokens:
                break
            budget = max(0, budget - num_tokens)
            self._begin_long(budget)
        return chunks

    def _relegate(self) -> None:
        """Takes the first of the short line to the long one where what made it short is gone."""
        if not self._short or not self._num_free:
            return
        head = self._short[0]
        if head.num_prefill_tokens > self._longest_short and not self._is_short(head):
            self._long.appendleft(self._short.popleft())

    def _queue(self, sequence: Sequence) -> None:
        line = self._line(sequence)
        at = len(line)
        while at and _order(line[at - 1]) > _order(sequence):
            at -= 1
        line.insert(at, sequence)

    def _line(self, sequence: Sequence) -> deque[Sequence]:
        return self._short if self._is_short(sequence) else self._long

    def _is_short(self, sequence: Sequence) -> bool:
        num_coming = self._space.find(sequence).num_coming
        longest = self._longest_short
        if sequence.lacks_prompt_logprobs:
            longest = min(longest, self._max_num_scored)
        return sequence.num_prefill_tokens - num_coming <= longest

    def _most(self, sequence: Sequence, budget: int) -> int:
        """How many of ``budget`` tokens the step may compute of a sequence."""
        if not sequence.lacks_prompt_logprobs:
            return budget
        return min(budget, self._max_num_scored - self._num_scored)

    def _begin_long(self, budget: int) -> None:
        """Starts the oldest long prompt where none is under way, unless a short one came first and
        wants the last place or waits for room.
        """
        if self._partial is not None or not self._long or not self._num_free:
            return
        short = self._short[0] if self._short else None
        if short is not None and _order(short) < _order(self._long[0]):
            if self._num_free > 1 and self._space.has_room(short):
                self._begin_head(self._long, budget)
        else:
            self._begin_head(self._long, budget)

    def _begin_head(self, line: deque[Sequence], budget: int) -> None:
        """Makes the first of a line the prompt under way, unless it had better wait."""
        head = line[0]
        if self._space.find(head).is_worth_waiting_for or not self._comes_first(head):
            return
        if not self._may_encode(head):
            return
        if self._space.has_room(head):
            self._partial = line.popleft()
            self._num_encoded += head.num_source_tokens

    def _comes_first(self, sequence: Sequence) -> bool:
        """Whether no long prompt that came before it waits for room."""
        if self._partial is not None or not self._long:
            return True
        head = self._long[0]
        is_first = _order(sequence) <= _order(head)
        return is_first or self._space.find(head).is_worth_waiting_for

    def _admit_short(self, budget: int, chunks: list[PrefillChunk]) -> int:
        """Books whole prompts of at most ``budget`` tokens together; returns their tokens."""
        num_tokens = 0
        held_back: list[Sequence] = []  # for a step or a few; each keeps a place free
        while self._short and self._num_free > len(held_back) and num_tokens < budget:
            sequence = self._short[0]
            shared = self._space.find(sequence)
            if shared.is_worth_waiting_for:
                held_back.append(self._short.popleft())
                continue
            most = self._most(sequence, budget - num_tokens)
            if sequence.num_prefill_tokens - shared.num_ready > most:
                break
            if not self._comes_first(sequence) or not self._space.has_room(sequence):
                break
            if not self._may_encode(sequence):
                break
            self._short.popleft()
            self._num_encoded += sequence.num_source_tokens
            num_tokens += self._admit(sequence, chunks)
        self._short.extendleft(reversed(held_back))
        return num_tokens

    def _is_whole(self, sequence: Sequence, budget: int) -> bool:
        """Whether a step with ``budget`` tokens left computes all of a prompt that waits."""
        num_left = sequence.num_prefill_tokens - self._space.find(sequence).num_ready
        may_cut = self._chunked_prefill and (self._cuts_sources or sequence.source is None)
        return num_left <= self._most(sequence, budget) or not may_cut

    def _admit(self, sequence: Sequence, chunks: list[PrefillChunk]) -> int:
        """Books all of a prompt that is to be computed; returns its tokens."""
        self._copies += self._space.allocate(sequence)
        self._run(sequence)
        return self._book(sequence, sequence.num_prefill_tokens, chunks)

    def _run(self, sequence: Sequence) -> None:
        """Has it decode from the next step on; in the order of the rows of states, which are read
        as a view where they follow each other.
        """
        insort(self.running, sequence, key=attrgetter("slot"))

    def _continue(self, sequence: Sequence, budget: int, chunks: list[PrefillChunk]) -> int:
        """Books a chunk of the prompt under way; returns its tokens, 0 where it finds no room."""
        most = self._most(sequence, budget)
        if most <= 0:
            return 0
        if not sequence.num_computed_tokens:
            is_whole = self._is_whole(sequence, budget)
            if not self._space.has_room(sequence):
                return 0
            if is_whole:
                self._partial = None
                return self._admit(sequence, chunks)
            self._copies += self._space.allocate(sequence)
        end = min(sequence.num_prefill_tokens, sequence.num_computed_tokens + most)
        if end == sequence.num_prefill_tokens:
            self._run(sequence)
            self._partial = None
        return self._book(sequence, end, chunks)

    def _may_encode(self, sequence: Sequence) -> bool:
        """Whether this step may compute the sequence's source."""
        num_tokens = sequence.num_source_tokens
        if not num_tokens or not self._num_encoded:
            return True
        return self._num_encoded + num_tokens <= self.max_num_batched_tokens

    def _book(self, sequence: Sequence, end: int, chunks: list[PrefillChunk]) -> int:
        start, sequence.num_computed_tokens = sequence.num_computed_tokens, end
        if sequence.lacks_prompt_logprobs:
            self._num_scored += end - start
        self._space.note_computed(sequence, end)
        chunks.append(PrefillChunk(sequence, start, end))
        return end - start


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.priority, sequence.arrival

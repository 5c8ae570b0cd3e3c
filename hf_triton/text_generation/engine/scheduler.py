"""Decides what each step computes: which sequences decode, which prompts (or chunks of one) are
prefilled. Knows tokens as counts and asks ``space`` for room for their keys and values; never
touches a tensor.

A prompt that begins like one under way waits until it can share what that one computes.

Long and short prompts wait in two queues, each in order of priority and then of arrival. A long
prompt that is computed gets at least half of a step's tokens for prompts, short ones share the
rest: neither waits for a flood of the other. Room goes to the one that came first.

A source (an image, a sound, the text that an encoder-decoder reads) is computed in the step that
begins its sequence. A step encodes as many tokens as it may compute, or one longer source.

Where a running sequence finds no room for its next token, the last one of that order is preempted
(https://arxiv.org/abs/2309.06180, section 4.5): it waits before those of its queue that came later,
and all of its tokens are computed again. A step that preempts starts no prompt.

With ``pauses_background`` sequences of the lowest priority are computed only in steps without
others: they stay where they are meanwhile, or are preempted where their place is needed.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter

from ..memory.pages import Pages, StateCopy
from ..sequence.sequence import Sequence
from .step import PrefillChunk, Step

# In a step of the background that another sequence may have to wait for.
_MOST_BACKGROUND_TOKENS = 32


class Scheduler:
    """Runs ``max_num_seqs`` sequences and computes at most ``max_num_batched_tokens`` a step.
    ``prompt_limit`` says how many tokens of prompts a step may compute beside the given decodes.
    Prompts are not cut without ``chunked_prefill``, nor those with sources without
    ``cuts_sources``. Of prompts whose log-probabilities are wanted a step computes at most
    ``max_num_scored`` tokens: each has a row of logits.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        space: Pages,
        *,
        chunked_prefill: bool = True,
        cuts_sources: bool = True,
        max_num_scored: int | None = None,
        prompt_limit: Callable[[list[Sequence]], int] | None = None,
        pauses_background: bool = False,
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self._max_num_scored = max_num_scored or max_num_batched_tokens
        self.running: list[Sequence] = []
        self.num_preempted = 0
        self._longest_short = max_num_batched_tokens // 2
        self._chunked_prefill, self._cuts_sources = chunked_prefill, cuts_sources
        self._prompt_limit = prompt_limit
        self._pauses_background, self._is_paused = pauses_background, False
        self._short: deque[Sequence] = deque()
        self._long: deque[Sequence] = deque()
        self._num_arrived = 0
        self._partial: Sequence | None = None  # the prompt under way
        self._space = space
        # In the step that is made: copies, tokens of sources, tokens whose logits are wanted.
        self._copies: list[StateCopy] = []
        self._num_encoded = self._num_scored = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._partial or self._short or self._long)

    @property
    def num_prompts(self) -> int:
        """The number of prompts that wait or are under way."""
        return len(self._short) + len(self._long) + (self._partial is not None)

    @property
    def holding(self) -> list[Sequence]:
        """Every sequence that is started."""
        return self.running + ([self._partial] if self._partial else [])

    def add(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            sequence.arrival = self._num_arrived
            self._num_arrived += 1
            self._queue(sequence)

    def schedule(self) -> Step:
        """Every running sequence decodes one token; prompts get the rest of the step's tokens."""
        self._space.finish_step()
        self._num_scored = 0
        unplaced = [s for s in (self._partial,) if s is not None and not s.num_computed_tokens]
        self._num_encoded = sum(sequence.num_source_tokens for sequence in unplaced)
        heads = [queue[0] for queue in (self._short, self._long) if queue]
        others = [one for one in (*self.holding, *heads) if not one.is_background]
        self._is_paused = self._pauses_background and bool(others)
        if self._is_paused:
            self._make_room([head for head in heads if not head.is_background])
        num_preempted = self.num_preempted
        decodes = self._decodes()
        prefills = []
        if num_preempted == self.num_preempted:
            budget = most = self.max_num_batched_tokens - len(decodes)
            if decodes and self.num_prompts and self._prompt_limit is not None:
                budget = min(most, self._prompt_limit(decodes))
            if self._pauses_background and not others:
                budget = min(budget, _MOST_BACKGROUND_TOKENS)
            prefills = self._prefills(budget, most)
        for sequence in decodes:
            sequence.num_computed_tokens += 1
        copies, self._copies = self._copies, []
        return Step(decodes, prefills, copies)

    def retire(self, finished: Iterable[Sequence]) -> None:
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
        """Retires sequences that were not computed: none shares their prefixes."""
        failed = list(failed)
        for sequence in failed:
            self._space.free_uncomputed(sequence)
        self.retire(failed)

    def expel(self, sequences: Iterable[Sequence]) -> None:
        """Retires sequences whose keys may be NaN, and forgets the prefixes that they share."""
        sequences = list(sequences)
        for sequence in sequences:
            self._space.distrust(sequence)
        self.discard(sequences)

    def restart(self, sequences: Iterable[Sequence]) -> None:
        """Expels sequences, which then wait again and share nothing."""
        sequences = list(sequences)
        self.expel(sequences)
        for sequence in sequences:
            sequence.preempt()
            sequence.is_alone = True
            self._queue(sequence)

    def drain_running(self) -> list[Sequence]:
        """Takes out every started sequence and forgets what was computed."""
        sequences = self.holding
        self.running, self._partial = [], None
        self._space.clear()
        self._copies.clear()
        return sequences

    def drain(self) -> list[Sequence]:
        waiting = sorted((*self._short, *self._long), key=_order)
        self._short.clear()
        self._long.clear()
        return self.drain_running() + waiting

    @property
    def _num_free(self) -> int:
        return self.max_num_seqs - len(self.running) - (self._partial is not None)

    def _make_room(self, heads: list[Sequence]) -> None:
        """Preempts sequences of the background until these prompts of others may begin."""
        background = sorted((one for one in self.holding if one.is_background), key=_order)
        if self._partial in background:
            background.remove(self._partial)
            self._preempt(self._partial)
        while background and not all(self._num_free and self._space.has_room(one) for one in heads):
            self._preempt(background.pop())

    def _preempt(self, sequence: Sequence) -> None:
        self.retire([sequence])
        sequence.preempt()
        self._queue(sequence)
        self.num_preempted += 1

    def _decodes(self) -> list[Sequence]:
        decodes = [one for one in self.running if not (self._is_paused and one.is_background)]
        num_preempted = self.num_preempted
        for sequence in decodes:
            while sequence.num_computed_tokens and not self._space.append(
                sequence, sequence.num_computed_tokens + 1
            ):
                self._preempt(max(self.holding, key=_order))
        if num_preempted == self.num_preempted:
            return decodes
        return [sequence for sequence in decodes if sequence.num_computed_tokens]

    def _prefills(self, budget: int, most: int) -> list[PrefillChunk]:
        """Chunks of ``budget`` tokens together, at most ``most``."""
        chunks: list[PrefillChunk] = []
        if self._short and self._num_free:  # what made it short may be gone
            head = self._short[0]
            if head.num_prefill_tokens > self._longest_short and not self._is_short(head):
                self._long.appendleft(self._short.popleft())
        self._begin_long()
        reserved = -(-budget // 2) if self._partial else 0
        for_short = budget - reserved
        if self._partial is not None and self._short:
            # The long one may take many steps, and short ones are not cut.
            head = self._short[0]
            num_needed = head.num_prefill_tokens - self._space.find(head).num_ready
            for_short = max(for_short, min(most - reserved, num_needed))
        budget = max(reserved, budget - self._admit_short(for_short, chunks))
        if self._partial is None and self._short and self._num_free and budget:
            self._begin_head(self._short)  # nothing longer is under way
        while self._partial is not None and budget:
            num_tokens = self._continue(self._partial, budget, chunks)
            if not num_tokens:
                break
            budget = max(0, budget - num_tokens)
            self._begin_long()
        return chunks

    def _queue(self, sequence: Sequence) -> None:
        insort(self._short if self._is_short(sequence) else self._long, sequence, key=_order)

    def _is_short(self, sequence: Sequence) -> bool:
        longest = self._longest_short
        if sequence.lacks_prompt_logprobs:
            longest = min(longest, self._max_num_scored)
        return sequence.num_prefill_tokens - self._space.find(sequence).num_coming <= longest

    def _most(self, sequence: Sequence, budget: int) -> int:
        """The number of ``budget`` tokens that the step may compute of a sequence."""
        if not sequence.lacks_prompt_logprobs:
            return budget
        return min(budget, self._max_num_scored - self._num_scored)

    def _begin_long(self) -> None:
        """Starts the oldest long prompt where none is under way, unless a short one came first and
        wants the last place or waits for room.
        """
        if self._partial is not None or not self._long or not self._num_free:
            return
        short = self._short[0] if self._short else None
        if (
            short is None
            or _order(short) > _order(self._long[0])
            or (self._num_free > 1 and self._space.has_room(short))
        ):
            self._begin_head(self._long)

    def _begin_head(self, queue: deque[Sequence]) -> None:
        """Makes the first of a queue the prompt under way, unless it has to wait."""
        head = queue[0]
        if self._space.find(head).is_worth_waiting_for or not self._may_begin(head):
            return
        self._partial = queue.popleft()
        self._num_encoded += head.num_source_tokens

    def _may_begin(self, sequence: Sequence) -> bool:
        """True if its source and prompt have room, and no long prompt before it waits for room."""
        if self._is_paused and sequence.is_background:
            return False
        if self._partial is None and self._long:
            head = self._long[0]
            came_later = _order(sequence) > _order(head)
            if came_later and not self._space.find(head).is_worth_waiting_for:
                return False
        num_encoded = self._num_encoded + sequence.num_source_tokens
        is_too_much = self._num_encoded and num_encoded > self.max_num_batched_tokens
        if sequence.num_source_tokens and is_too_much:
            return False
        return self._space.has_room(sequence)

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
            if not self._may_begin(sequence):
                break
            self._short.popleft()
            self._num_encoded += sequence.num_source_tokens
            self._copies += self._space.allocate(sequence)
            num_tokens += self._book(sequence, sequence.num_prefill_tokens, chunks)
        self._short.extendleft(reversed(held_back))
        return num_tokens

    def _continue(self, sequence: Sequence, budget: int, chunks: list[PrefillChunk]) -> int:
        """Books a chunk of the prompt under way; returns its tokens, 0 where it finds no room."""
        most = self._most(sequence, budget)
        if most <= 0:
            return 0
        if not sequence.num_computed_tokens:
            if not self._space.has_room(sequence):
                return 0
            self._copies += self._space.allocate(sequence)
        end = sequence.num_prefill_tokens
        if self._chunked_prefill and (self._cuts_sources or sequence.source is None):
            end = min(end, sequence.num_computed_tokens + most)
        if end == sequence.num_prefill_tokens:
            self._partial = None
        return self._book(sequence, end, chunks)

    def _book(self, sequence: Sequence, end: int, chunks: list[PrefillChunk]) -> int:
        if end == sequence.num_prefill_tokens:
            # By their rows of states, which are read as a view where they follow each other.
            insort(self.running, sequence, key=attrgetter("slot"))
        start, sequence.num_computed_tokens = sequence.num_computed_tokens, end
        if sequence.lacks_prompt_logprobs:
            self._num_scored += end - start
        self._space.note_computed(sequence, end)
        chunks.append(PrefillChunk(sequence, start, end))
        return end - start


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.priority, sequence.arrival

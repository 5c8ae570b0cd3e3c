"""Which slot holds the keys and values of which tokens, and which of them a new prompt can reuse.

Slots stay compact, so that a decode step reads one contiguous view of the cache: the running
sequences hold slots ``0 .. n-1``. A prompt that is computed over several steps holds the last slot
of all meanwhile; there is at most one. After a step, rows move into the holes that finished
sequences leave and to where a finished prompt belongs.

When a sequence ends, its keys and values stay in their slot as a prefix until the slot is needed;
then they are copied to a free slot, or replace the least recently used prefix. Prompts copy from
prefixes and from running sequences. Decides no order and computes nothing: it answers with copies
to be made, in order. Where no prefix may be kept, nothing is shared.

A slot that holds a state (of a convolution or a recurrence) holds that of all its tokens, and
nothing of fewer: there a prompt shares with an ended sequence that it continues from the end. Where
the runner takes snapshots, a prompt that begins like a known one leaves its state, as it passes the
last common token, in a slot of its own, for the next that begins so: states are worth keeping where
prompts branch (https://arxiv.org/abs/2411.19379, section 4.1).

A step reads a slot up to its longest row, behind a mask, and 0 times NaN is NaN: whoever is given a
slot finds zeros behind its own tokens. So each slot's ``num_written`` is kept, the most tokens that
any step may have written there since it was cleared.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..sequence.sequence import Sequence, Snapshot
from .prefix_index import (
    MIN_TOKENS,
    NO_SHARED_PREFIX,
    Prefix,
    PrefixIndex,
    SharedPrefix,
    num_common_tokens,
    prefix_of,
)


@dataclass(frozen=True)
class SlotCopy:
    """Copy the first ``num_tokens`` of slot ``source`` to slot ``target``, where that is another,
    and clear what ``target`` holds of others behind them, up to token ``num_written``. Where tokens
    lie in pages, copy states alone, and then from one ``page`` to another.
    """

    source: int
    target: int
    num_tokens: int
    page: tuple[int, int] | None = None
    num_written: int = 0


# A prefix is copied to another slot where at least this share of its tokens is in no other slot;
# else copying it costs more than it may save, and it is dropped.
_LEAST_OWN_SHARE = 1 / 8


class SlotContents:
    """``num_slots`` for sequences and ``num_prefix_slots`` more, which keep at most ``max_kept``
    prefixes; slots of ``states`` are shared whole, and prompts may leave ``snapshots`` of them.
    ``num_written`` tokens of others are in each.
    """

    def __init__(
        self,
        num_slots: int,
        num_prefix_slots: int = 0,
        max_kept: int = 0,
        *,
        states: bool = False,
        snapshots: bool = False,
        num_written: int = 0,
    ) -> None:
        self._last_slot = num_slots - 1
        self._num_written = [num_written] * (num_slots + num_prefix_slots)
        self._most_written = num_written  # in any, ever
        self._room = prefix_slot_order(num_slots, num_prefix_slots) if max_kept else []
        self._max_kept = max_kept
        self._parked: Sequence | None = None  # in the last slot
        self._index = PrefixIndex(whole=states)
        self._of_running = PrefixIndex() if states else self._index
        self._takes_snapshots = states and snapshots and max_kept > 0
        self._holding: dict[Sequence, Prefix | None] = {}
        self.kept: dict[int, Prefix] = {}  # by slot
        self._noted: list[tuple[Prefix, int]] = []  # ready when the step is over
        self._clock = 0

    @property
    def most_written(self) -> int:
        """How many tokens there may be in a slot."""
        return self._most_written

    @property
    def num_kept(self) -> int:
        """How many ended sequences can be shared with."""
        return len(self.kept)

    def forget_oldest(self) -> None:
        """Forgets what was shared or left longest ago."""
        self._forget(self._least_recently_used())

    def find(self, sequence: Sequence) -> SharedPrefix:
        """What a waiting sequence's prompt begins like."""
        return self._index.find(sequence)

    def has_room(self, sequence: Sequence, *, whole: bool) -> bool:
        """Whether the slot that it needs is free, as long as fewer than all sequences have one."""
        return whole or self._parked is None

    def allocate(self, sequence: Sequence, *, whole: bool) -> list[SlotCopy]:
        """Gives a sequence the next slot, or the last where one step does not compute it whole, and
        the keys and values shared with another slot.
        """
        slot = len(self._holding) - (self._parked is not None)
        if not whole:
            slot, self._parked = self._last_slot, sequence
        shared = self._shared_in_place(sequence, slot)
        source = shared.source
        source_slot = slot if source is None else source.slot
        if source is not None:
            source.last_used = self._tick()
        copies = self._vacate(slot, unless=shared)
        copies += self._cleared(source_slot, slot, shared.num_ready)
        self._note_written(slot, sequence.num_prefill_tokens)
        sequence.slot = slot
        sequence.num_computed_tokens = sequence.num_reused_tokens = shared.num_ready
        num_common = self._num_common(sequence)
        self._hold(sequence)
        sequence.snapshot = None
        if num_common >= shared.num_ready + MIN_TOKENS:
            self._leave_snapshot(sequence, num_common)
        return copies

    def append(self, sequence: Sequence, num_tokens: int) -> bool:
        """A slot has room for the longest sequence."""
        self._note_written(sequence.slot, num_tokens)
        return True

    def note_computed(self, sequence: Sequence, num_computed: int) -> None:
        """Notes that the step computes a prompt up to ``num_computed`` tokens."""
        prefix, left = self._holding[sequence], sequence.snapshot
        if prefix is not None:
            self._noted.append((prefix, num_computed))
        if left is not None and left.num_tokens <= num_computed:
            self._noted.append((self.kept[left.slot], left.num_tokens))

    def finish_step(self) -> None:
        """What was noted is computed now."""
        for prefix, num_computed in self._noted:
            prefix.num_ready = num_computed
            if prefix.left_by is not None:
                prefix.left_by.snapshot = None
                prefix.left_by = None
        self._noted.clear()

    def compact(self, running: list[Sequence]) -> list[SlotCopy]:
        """Moves the last running sequences into the slots of those that are gone; sorts them by
        slot.
        """
        if self._parked is None and (not running or running[-1].slot == len(running) - 1):
            return []  # they lie in order, and none is gone
        if self._parked in running:
            self._parked = None
        slots = {sequence.slot for sequence in running}
        holes = [slot for slot in range(len(running)) if slot not in slots]
        movers = sorted((s for s in running if s.slot >= len(running)), key=_slot)
        copies = []
        for slot, sequence in zip(holes, movers, strict=True):
            copies += self._move(sequence, slot)
        running.sort(key=_slot)
        return copies

    def _move(self, sequence: Sequence, slot: int) -> list[SlotCopy]:
        copies = self._vacate(slot)
        copies += self._cleared(sequence.slot, slot, sequence.num_computed_tokens)
        sequence.slot = slot
        prefix = self._holding[sequence]
        if prefix is not None:
            prefix.slot = slot
        return copies

    def _cleared(self, source: int, target: int, num_tokens: int) -> list[SlotCopy]:
        """What leaves ``num_tokens`` of one slot in another, or in itself, and nothing else."""
        num_written, self._num_written[target] = self._num_written[target], num_tokens
        if num_written <= num_tokens:
            num_written = 0
        if source == target and not num_written:
            return []
        return [SlotCopy(source, target, num_tokens, num_written=num_written)]

    def _note_written(self, slot: int, num_tokens: int) -> None:
        if num_tokens > self._num_written[slot]:
            self._num_written[slot] = num_tokens
            self._most_written = max(self._most_written, num_tokens)

    def free(self, sequence: Sequence) -> None:
        """Takes a sequence's slot back when its last step is over; keeps what it computed."""
        if sequence not in self._holding:
            return
        prefix = self._holding.pop(sequence)
        if sequence is self._parked:
            self._parked = None
        if prefix is not None:
            self._of_running.remove(prefix)
        self._give_up_snapshot(sequence)
        num_tokens = sequence.num_computed_tokens
        if not self._room or num_tokens < MIN_TOKENS:
            return
        token_ids = sequence.keys(0, num_tokens)
        self._keep(prefix_of(sequence, token_ids, num_tokens, self._tick()))

    def free_uncomputed(self, sequence: Sequence) -> None:
        """Takes a sequence's slot back, and keeps nothing of it."""
        self._noted = [noted for noted in self._noted if noted[0].left_by is not sequence]
        sequence.num_computed_tokens = 0
        self.free(sequence)

    def distrust(self, sequence: Sequence) -> None:
        """Forgets what is kept that begins as a sequence does."""
        num_tokens = sequence.num_computed_tokens
        if num_tokens < MIN_TOKENS:
            return
        own = prefix_of(sequence, sequence.keys(0, num_tokens), num_tokens)
        for other, num_common in self._index.alike(own):
            if num_common and self.kept.get(other.slot) is other:
                self._forget(other)

    def clear(self) -> None:
        """Forgets all, where what the slots hold is in doubt."""
        self._num_written = [self._most_written] * len(self._num_written)
        self._index.clear()
        self._of_running.clear()
        self._holding.clear()
        self.kept.clear()
        self._noted.clear()
        self._parked = None

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _shared_in_place(self, sequence: Sequence, slot: int) -> SharedPrefix:
        """The prefix that a prompt shares; the one in its own slot where that is as long."""
        shared = self._index.find(sequence)
        there = None if self._index.whole else self.kept.get(slot)
        if shared.source is None or there is None or there.start != shared.source.start:
            return shared
        if (
            num_common_tokens(shared.source.token_ids[: shared.num_ready], there.token_ids)
            < shared.num_ready
        ):
            return shared
        return SharedPrefix(there, shared.num_ready)

    def _hold(self, sequence: Sequence) -> None:
        prefix = None
        if self._room and sequence.num_prompt_tokens > MIN_TOKENS:
            prefix = prefix_of(sequence, sequence.prompt_keys, sequence.num_reused_tokens)
            self._of_running.add(prefix)
        self._holding[sequence] = prefix

    def _num_common(self, sequence: Sequence) -> int:
        """With how many tokens of any prompt that is known here a sequence's prompt begins."""
        if not self._takes_snapshots:
            return 0
        return max(index.num_common(sequence) for index in (self._index, self._of_running))

    def _leave_snapshot(self, sequence: Sequence, num_tokens: int) -> None:
        """Has a sequence leave a snapshot, in a slot that is not needed now."""
        prefix = prefix_of(sequence, sequence.prompt_keys[:num_tokens], 0, self._tick())
        slot = self._target(prefix)
        if slot is not None:
            prefix.slot, prefix.left_by, prefix.is_snapshot = slot, sequence, True
            self._note_written(slot, num_tokens)
            sequence.snapshot = Snapshot(num_tokens, slot)
            self._add_kept(prefix)

    def _give_up_snapshot(self, sequence: Sequence) -> None:
        """Forgets what a sequence that ends has not left yet."""
        left = sequence.snapshot
        prefix = None if left is None else self.kept.get(left.slot)
        is_left = any(prefix is noted for noted, _ in self._noted)
        if prefix is not None and prefix.left_by is sequence and not is_left:
            self._forget(prefix)

    def _keep(self, prefix: Prefix) -> None:
        """Keeps a prefix in its slot, unless another contains all of it; drops those that it
        contains.
        """
        for other, num_common in self._index.alike(prefix):
            if num_common == len(prefix) <= other.num_ready:
                other.last_used = max(other.last_used, prefix.last_used)
                return
            is_kept = self.kept.get(other.slot) is other and not other.is_snapshot
            if num_common == len(other) and is_kept:
                self._forget(other)
        self._add_kept(prefix)

    def _add_kept(self, prefix: Prefix) -> None:
        self.kept[prefix.slot] = prefix
        self._index.add(prefix)
        if len(self.kept) > self._max_kept:
            self.forget_oldest()

    def _forget(self, prefix: Prefix) -> None:
        del self.kept[prefix.slot]
        self._index.remove(prefix)
        if prefix.left_by is not None:
            prefix.left_by.snapshot = None

    def _least_recently_used(self) -> Prefix:
        return min(self.kept.values(), key=lambda prefix: prefix.last_used)

    def _vacate(self, slot: int, unless: SharedPrefix = NO_SHARED_PREFIX) -> list[SlotCopy]:
        """Copies the prefix in a slot to another, or drops it: where other slots have most of it,
        or where the slot's next sequence, which shares ``unless``, continues all of it.
        """
        prefix = self.kept.get(slot)
        if prefix is None:
            return []
        self._forget(prefix)
        if prefix.left_by is not None:
            return []  # it is not there yet
        goes_on = unless.source is prefix and unless.num_ready == len(prefix)
        target = None if goes_on or not self._is_worth_moving(prefix) else self._target(prefix)
        if target is None:
            return []
        prefix.slot = target
        self._note_written(target, len(prefix))
        self.kept[target] = prefix
        self._index.add(prefix)
        return [SlotCopy(slot, target, len(prefix))]

    def _is_worth_moving(self, prefix: Prefix) -> bool:
        num_elsewhere = 0
        for other, num_common in self._index.alike(prefix):
            num_elsewhere = max(num_elsewhere, min(num_common, other.num_ready))
        num_own = len(prefix) - num_elsewhere
        return num_own >= max(MIN_TOKENS, _LEAST_OWN_SHARE * len(prefix))

    def _target(self, prefix: Prefix) -> int | None:
        """A slot for a prefix that has to move: an empty one, else an older prefix's."""
        taken = {sequence.slot for sequence in self._holding} | self.kept.keys() | {prefix.slot}
        for slot in self._room:
            if slot not in taken:
                return slot
        if not self.kept:
            return None
        oldest = self._least_recently_used()
        if oldest.last_used > prefix.last_used:
            return None
        self._forget(oldest)
        return oldest.slot


def _slot(sequence: Sequence) -> int:
    return sequence.slot


def prefix_slot_order(num_slots: int, num_prefix_slots: int) -> list[int]:
    """All slots in the order in which they take prefixes: those that sequences need last come
    first. Prefix slots, then sequences' slots from the highest down; their last slot, where long
    prompts are computed, comes at the end.
    """
    own = range(num_slots + num_prefix_slots - 1, num_slots - 1, -1)
    return [*own, *range(num_slots - 2, -1, -1), num_slots - 1]

"""Which pages hold the keys and values of sequences that have states beside them, and what of both
a new prompt shares.

States lie in rows of tables, slots (slot_contents.py), which say what is shared: a prompt goes on
from an ended sequence, or from a snapshot, whose pages stay with the state. Full pages are shared
by reference; the one that the state ends in is copied, as the prompt writes on in it. Pages that
only kept states hold are free for sequences that run: those of the least recently used go first. A
sequence that is preempted leaves its state so too, and goes on from it where it is still there.

Knows pages as numbers. Page 0 is never given out: padding writes there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from ..sequence.sequence import Sequence
from .pages import FreePages, num_growing, num_pages_of
from .prefix_index import Prefix, SharedPrefix
from .slot_contents import SlotContents, SlotCopy


class StatePages:
    """Pages ``1 .. num_pages-1`` of so many tokens, for the sequences of ``slots``."""

    def __init__(self, num_pages: int, page_size: int, slots: SlotContents) -> None:
        self.num_pages, self.page_size, self._slots = num_pages, page_size, slots
        self._running: set[Sequence] = set()
        self.clear()

    @property
    def num_kept(self) -> int:
        """How many states can be shared with."""
        return self._slots.num_kept

    def clear(self) -> None:
        """Takes all room back and forgets what it holds."""
        for sequence in self._running:
            sequence.pages = array("i")
        self._running.clear()
        self._slots.clear()
        self._pages_of: dict[Prefix, array[int]] = {}  # of kept states
        self._free = FreePages(self.num_pages)
        self._num_running = [0] * self.num_pages  # sequences that hold a page
        self._num_keeping = [0] * self.num_pages  # kept states that do
        self.num_used = 0  # pages that sequences hold

    def find(self, sequence: Sequence) -> SharedPrefix:
        """What a waiting sequence's prompt begins like."""
        return self._slots.find(sequence)

    def has_room(self, sequence: Sequence, *, whole: bool) -> bool:
        """Whether there is a slot, and pages for its prompt and one more for each that may need
        more.
        """
        shared = self._full_pages(self._slots.find(sequence))
        num_needed = self._num_pages(sequence.num_prefill_tokens) - len(shared)
        num_needed += num_growing(self._running, self.page_size)
        num_needed += sum(not self._num_running[page] for page in shared)
        return self._slots.has_room(sequence, whole=whole) and num_needed <= self._num_left

    def allocate(self, sequence: Sequence, *, whole: bool) -> list[SlotCopy]:
        """Gives a sequence a slot, the pages that it shares, and its own for the rest."""
        found = self._slots.find(sequence)
        shared = self._full_pages(found)
        num_full = len(shared)
        begun = self._pages_of[found.source][num_full:] if found.source is not None else ()
        self._hold(shared)
        copies = self._slots.allocate(sequence, whole=whole)
        self._drop_forgotten()
        self._running.add(sequence)
        sequence.pages = shared
        self._extend(sequence, sequence.num_prefill_tokens)
        if begun:
            page = begun[0], sequence.pages[num_full]
            copies.append(SlotCopy(sequence.slot, sequence.slot, 0, page))
        if sequence.snapshot is not None:
            kept = self._slots.kept[sequence.snapshot.slot]
            self._keep(kept, sequence.pages[: self._num_pages(len(kept))])
        return copies

    def append(self, sequence: Sequence, num_tokens: int) -> bool:
        """Adds the pages that so many tokens need; False where there are none."""
        if self._num_pages(num_tokens) - len(sequence.pages) > self._num_left:
            return False
        self._extend(sequence, num_tokens)
        return True

    def note_computed(self, sequence: Sequence, num_computed: int) -> None:
        """Notes that the step computes a prompt up to ``num_computed`` tokens."""
        self._slots.note_computed(sequence, num_computed)

    def finish_step(self) -> None:
        """What was noted is computed now."""
        self._slots.finish_step()

    def compact(self, running: list[Sequence]) -> list[SlotCopy]:
        """Moves states into the slots of those that are gone; pages stay."""
        copies = self._slots.compact(running)
        self._drop_forgotten()
        return copies

    def free(self, sequence: Sequence) -> None:
        """Takes a sequence's room back; its state may stay known, and its pages with that."""
        self._give_back(sequence, self._slots.free)

    def free_uncomputed(self, sequence: Sequence) -> None:
        """Takes a sequence's room back, and keeps nothing of it."""
        self._give_back(sequence, self._slots.free_uncomputed)

    def distrust(self, sequence: Sequence) -> None:
        """Forgets the kept states of what a sequence begins with."""
        self._slots.distrust(sequence)
        self._drop_forgotten()

    def _give_back(self, sequence: Sequence, give_back: Callable[[Sequence], None]) -> None:
        give_back(sequence)
        if sequence not in self._running:
            return
        self._running.remove(sequence)
        kept = self._slots.kept.get(sequence.slot)
        if kept is not None:
            self._keep(kept, sequence.pages[: self._num_pages(len(kept))])
        self._drop_forgotten()
        for page in reversed(sequence.pages):
            self._num_running[page] -= 1
            if not self._num_running[page]:
                self.num_used -= 1
                self._free_if_unheld(page)
        sequence.pages = array("i")

    def _num_pages(self, num_tokens: int) -> int:
        return num_pages_of(num_tokens, self.page_size)

    @property
    def _num_left(self) -> int:
        """Pages that no sequence holds."""
        return self.num_pages - 1 - self.num_used

    def _full_pages(self, shared: SharedPrefix) -> array[int]:
        if shared.source is None:
            return array("i")
        return self._pages_of[shared.source][: shared.num_ready // self.page_size]

    def _extend(self, sequence: Sequence, num_tokens: int) -> None:
        for _ in range(self._num_pages(num_tokens) - len(sequence.pages)):
            while not self._free:
                self._slots.forget_oldest()
                self._drop_forgotten()
            page = self._free.take(sequence.pages[-1] if sequence.pages else -1)
            self._hold([page])
            sequence.pages.append(page)

    def _hold(self, pages: Iterable[int]) -> None:
        for page in pages:
            self.num_used += not self._num_running[page]
            self._num_running[page] += 1

    def _keep(self, kept: Prefix, pages: array[int]) -> None:
        self._pages_of[kept] = pages
        for page in pages:
            self._num_keeping[page] += 1

    def _drop_forgotten(self) -> None:
        """Takes the pages of states that are kept no more."""
        kept = self._slots.kept
        for prefix in [one for one in self._pages_of if kept.get(one.slot) is not one]:
            for page in reversed(self._pages_of.pop(prefix)):
                self._num_keeping[page] -= 1
                self._free_if_unheld(page)

    def _free_if_unheld(self, page: int) -> None:
        if not self._num_running[page] and not self._num_keeping[page]:
            self._free.add(page)

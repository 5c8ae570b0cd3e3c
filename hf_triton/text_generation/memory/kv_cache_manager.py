"""What the scheduler knows of the cache: whether a sequence has room, and what its prompt shares.

Slots (slot_contents.py) and pages (pages.py) are the two kinds of room, and where a sequence has
states beside its pages, a slot for those and pages (state_pages.py). None decides an order.

No sequence reads a number that another left, for 0 times NaN is NaN, and no mask hides it. A slot
is cleared behind what its next sequence has there, pages are read up to a sequence's own length,
states begin as zeros. At load each runner is tried over a cache full of NaN (in_flight/trial.py).

What is shared is read by others, and it may be NaN because of tokens that they do not have: in a
prompt's chunk a token attends, behind a mask, to those after it. So a sequence whose scores are no
numbers leaves nothing, and takes with it what is kept of its beginning; one that began with what
another computed is computed again by itself (in_flight/engine.py). NaN spreads to whatever is
computed of it: what has numbers was computed of numbers.
"""

from __future__ import annotations

from typing import Protocol

from ..sequence.sequence import Sequence
from .slot_contents import SlotCopy


class Shared(Protocol):
    """What a prompt begins like: ``num_ready`` of its tokens have keys and values now,
    ``num_coming`` when the prompts that are being computed are ready.
    """

    @property
    def num_ready(self) -> int: ...

    @property
    def num_coming(self) -> int: ...

    @property
    def is_worth_waiting_for(self) -> bool: ...


class KVCacheManager(Protocol):
    """Where the keys and values of sequences lie. ``allocate`` and ``compact`` answer with the
    copies to be made, in order.
    """

    @property
    def num_kept(self) -> int:
        """How much of ended sequences can be shared: slots, or pages."""

    def find(self, sequence: Sequence) -> Shared:
        """What a waiting sequence's prompt begins like."""

    def has_room(self, sequence: Sequence, *, whole: bool) -> bool:
        """Whether a waiting sequence can be placed now; ``whole`` where one step computes all of
        its prompt.
        """

    def allocate(self, sequence: Sequence, *, whole: bool) -> list[SlotCopy]:
        """Gives a sequence room for its prompt, and what it shares as computed already."""

    def append(self, sequence: Sequence, num_tokens: int) -> bool:
        """Makes room for ``num_tokens`` in all; False where there is none."""

    def note_computed(self, sequence: Sequence, num_computed: int) -> None:
        """Notes that the step computes a prompt up to ``num_computed`` tokens."""

    def finish_step(self) -> None:
        """What was noted is computed now."""

    def compact(self, running: list[Sequence]) -> list[SlotCopy]:
        """Puts the running sequences into the order in which a step decodes them."""

    def free(self, sequence: Sequence) -> None:
        """Takes a sequence's room back, if it has any, when its last step is over."""

    def free_uncomputed(self, sequence: Sequence) -> None:
        """Takes a sequence's room back where what its last step was to compute was not."""

    def distrust(self, sequence: Sequence) -> None:
        """Forgets what could be shared of a sequence's room, where what that holds is in doubt."""

    def clear(self) -> None:
        """Takes all room back and forgets what it holds, where that is in doubt."""

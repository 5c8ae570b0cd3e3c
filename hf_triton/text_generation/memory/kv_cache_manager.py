"""What the scheduler knows of the cache: whether a sequence has room, and what its prompt shares.

Pages (pages.py) hold keys and values; a sequence with states has a row of their tables beside its
pages (state_pages.py). None decides an order.

No sequence reads a number that another left, for 0 times NaN is NaN, and no mask hides it: pages
are read up to a sequence's own length, states begin as zeros. At load each runner is tried over a
cache full of NaN (in_flight/trial.py).

What is shared is read by others, and it may be NaN because of tokens that they do not have: in a
prompt's chunk a token attends, behind a mask, to those after it. So a sequence whose scores are no
numbers leaves nothing, and takes with it what is kept of its beginning; one that began with what
another computed is computed again by itself (in_flight/engine.py). NaN spreads to whatever is
computed of it: what has numbers was computed of numbers.
"""

from __future__ import annotations

from typing import Protocol

from ..sequence.sequence import Sequence
from .layer_shapes import LayerShape, keep_states
from .paged_cache import PagedSize
from .pages import Pages, StateCopy
from .state_pages import StatePages

_FEWEST_KEPT = 4  # states


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
    """Where the keys and values of sequences lie."""

    @property
    def num_kept(self) -> int:
        """How much of ended sequences can be shared: states, or pages."""

    @property
    def num_used(self) -> int:
        """How many pages sequences hold."""

    def find(self, sequence: Sequence) -> Shared:
        """What a waiting sequence's prompt begins like."""

    def has_room(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence can be placed now."""

    def allocate(self, sequence: Sequence) -> list[StateCopy]:
        """Gives a sequence room for its prompt, and what it shares as computed already; answers
        with the copies to be made, in order.
        """

    def append(self, sequence: Sequence, num_tokens: int) -> bool:
        """Makes room for ``num_tokens`` in all; False where there is none."""

    def note_computed(self, sequence: Sequence, num_computed: int) -> None:
        """Notes that the step computes a prompt up to ``num_computed`` tokens."""

    def finish_step(self) -> None:
        """What was noted is computed now."""

    def free(self, sequence: Sequence) -> None:
        """Takes a sequence's room back, if it has any, when its last step is over."""

    def free_uncomputed(self, sequence: Sequence) -> None:
        """Takes a sequence's room back where what its last step was to compute was not."""

    def distrust(self, sequence: Sequence) -> None:
        """Forgets what could be shared of a sequence's room, where what that holds is in doubt."""

    def clear(self) -> None:
        """Takes all room back and forgets what it holds, where that is in doubt."""


def new_space(
    shapes: list[LayerShape], size: PagedSize, *, shares: bool, snapshots: bool = False
) -> KVCacheManager:
    """What a scheduler sees of an empty cache, with prefixes shared or not, and with ``snapshots``
    of states.
    """
    pages = size.num_pages, size.page_size
    if not keep_states(shapes):
        return Pages(*pages, shares=shares, most_kept=size.most_kept)
    num_seqs, num_own = size.max_num_seqs, size.num_prefix_rows
    is_bounded = size.most_kept is not None
    max_kept = num_own + (max(_FEWEST_KEPT, num_seqs // 4) if is_bounded else num_seqs)
    rows = num_seqs + num_own
    return StatePages(*pages, rows, max_kept=max_kept if shares else 0, snapshots=snapshots)

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

from .layer_shapes import LayerShape, keep_states
from .paged_cache import PagedSize
from .pages import Pages
from .state_pages import StatePages

_FEWEST_KEPT = 4  # states

KVCacheManager = Pages | StatePages


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

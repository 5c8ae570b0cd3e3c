"""Pages of sequences that have states beside keys and values, the rows of tables that hold these,
and what of both a new prompt shares.

A state is that of all its tokens, and nothing of fewer: a prompt continues an ended sequence from
its end. Where the runner takes snapshots, a prompt that begins like a known one also leaves its
state, as it passes the last common token, in a row of its own: states are worth keeping where
prompts branch (https://arxiv.org/abs/2411.19379, section 4.1).

Full pages are shared by reference; the one that a state ends in is copied. Rows and pages of kept
states are free for running sequences, the least recently used first; a preempted sequence leaves
its state too. Row and page 0 are never given out: padding writes there.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from ..sequence.sequence import Sequence, Snapshot
from .layer_shapes import LayerShape, keep_states
from .paged_cache import PagedSize
from .pages import FreePages, Pages, StateCopy, num_growing, num_pages_of
from .prefix_index import MIN_TOKENS, Prefix, PrefixIndex, SharedPrefix, prefix_of

_FEWEST_KEPT = 4  # states


class StatePages:
    """Pages ``1 .. num_pages-1`` and rows ``1 .. num_rows`` of states; at most ``max_kept`` rows
    keep states of ended sequences, and ``snapshots`` of others.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_rows: int,
        *,
        max_kept: int = 0,
        snapshots: bool = False,
    ) -> None:
        self.num_pages, self.page_size, self._num_rows = num_pages, page_size, num_rows
        self._max_kept = max_kept
        self._takes_snapshots = snapshots and max_kept > 0
        self._running: dict[Sequence, Prefix | None] = {}
        self._clock = 0
        self.clear()

    @property
    def num_kept(self) -> int:
        return len(self.kept)

    def clear(self) -> None:
        for sequence in self._running:
            sequence.pages = array("i")
        self._running.clear()
        self._index, self._of_running = PrefixIndex(whole=True), PrefixIndex()
        self.kept: dict[int, Prefix] = {}  # by row
        self._noted: list[tuple[Prefix, int]] = []  # ready when the step is over
        self._free_rows = list(range(self._num_rows, 0, -1))
        self._free = FreePages(self.num_pages)
        self._num_running = [0] * self.num_pages  # sequences that hold a page
        self._num_keeping = [0] * self.num_pages  # kept states that do
        self.num_used = 0  # pages that sequences hold

    def find(self, sequence: Sequence) -> SharedPrefix:
        return self._index.find(sequence)

    def has_room(self, sequence: Sequence) -> bool:
        shared = self._full_pages(self.find(sequence))
        num_needed = self._num_pages(sequence.num_prefill_tokens) - len(shared)
        num_needed += num_growing(self._running, self.page_size)
        num_needed += sum(not self._num_running[page] for page in shared)
        return num_needed <= self._num_left

    def allocate(self, sequence: Sequence) -> list[StateCopy]:
        """Gives a sequence a row, the pages that it shares, and its own."""
        found = self.find(sequence)
        source, shared, begun = found.source, self._full_pages(found), array("i")
        self._hold(shared)
        copies = []
        if source is not None:
            source.last_used, begun = self._tick(), source.pages[len(shared) :]
        num_full, sequence.pages = len(shared), shared
        sequence.slot = self._take_row()
        sequence.num_computed_tokens = sequence.num_reused_tokens = found.num_ready
        prompt, num_common = None, 0
        if self._takes_snapshots and sequence.num_prompt_tokens > MIN_TOKENS:
            # How long a beginning it has in common with any known prompt.
            num_common = max(at.num_common(sequence) for at in (self._index, self._of_running))
            prompt = prefix_of(sequence, sequence.prompt_keys, sequence.num_reused_tokens)
            self._of_running.add(prompt)
        self._running[sequence], sequence.snapshot = prompt, None
        self._extend(sequence, sequence.num_prefill_tokens)
        if source is not None:
            page = (begun[0], sequence.pages[num_full]) if begun else None
            copies.append(StateCopy(source.slot, sequence.slot, page))
        if num_common >= found.num_ready + MIN_TOKENS:
            self._leave_snapshot(sequence, num_common)
        return copies

    def append(self, sequence: Sequence, num_tokens: int) -> bool:
        if self._num_pages(num_tokens) - len(sequence.pages) > self._num_left:
            return False
        self._extend(sequence, num_tokens)
        return True

    def note_computed(self, sequence: Sequence, num_computed: int) -> None:
        """Notes a snapshot that the step leaves."""
        left = sequence.snapshot
        if left is not None and left.num_tokens <= num_computed:
            self._noted.append((self.kept[left.slot], left.num_tokens))

    def finish_step(self) -> None:
        for prefix, num_computed in self._noted:
            prefix.num_ready = num_computed
            if prefix.left_by is not None:
                prefix.left_by.snapshot = None
                prefix.left_by = None
        self._noted.clear()

    def free(self, sequence: Sequence) -> None:
        """Takes a sequence's room back; its state and pages may stay known."""
        if sequence not in self._running:
            return
        prompt = self._running.pop(sequence)
        if prompt is not None:
            self._of_running.remove(prompt)
        self._give_up_snapshot(sequence)
        num_tokens = sequence.num_computed_tokens
        is_kept = self._max_kept > 0 and num_tokens >= MIN_TOKENS and self._keep_state(sequence)
        if not is_kept:
            self._free_rows.append(sequence.slot)
        for page in reversed(sequence.pages):
            self._num_running[page] -= 1
            if not self._num_running[page]:
                self.num_used -= 1
                self._free_if_unheld(page)
        sequence.pages = array("i")

    def free_uncomputed(self, sequence: Sequence) -> None:
        """Takes back the room of a sequence that was not computed."""
        self._noted = [noted for noted in self._noted if noted[0].left_by is not sequence]
        sequence.num_computed_tokens = 0
        self.free(sequence)

    def distrust(self, sequence: Sequence) -> None:
        """Forgets kept states of what a sequence begins with."""
        num_tokens = sequence.num_computed_tokens
        if num_tokens < MIN_TOKENS:
            return
        own = prefix_of(sequence, sequence.keys(0, num_tokens), num_tokens)
        for other, num_common in self._index.alike(own):
            if num_common:
                self._forget(other)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _num_pages(self, num_tokens: int) -> int:
        return num_pages_of(num_tokens, self.page_size)

    @property
    def _num_left(self) -> int:
        return self.num_pages - 1 - self.num_used

    def _full_pages(self, shared: SharedPrefix) -> array[int]:
        if shared.source is None:
            return array("i")
        return shared.source.pages[: shared.num_ready // self.page_size]

    def _take_row(self) -> int:
        """There is a row while fewer than all sequences run."""
        if not self._free_rows:
            self._forget_oldest()
        # The lowest, so that rows of a step mostly follow each other: they are read as a view.
        row = min(self._free_rows)
        self._free_rows.remove(row)
        return row

    def _leave_snapshot(self, sequence: Sequence, num_tokens: int) -> None:
        """Has a sequence leave a snapshot, in a row that is free or kept."""
        prefix = prefix_of(sequence, sequence.prompt_keys[:num_tokens], 0, self._tick())
        if not self._free_rows and self.kept:
            self._forget_oldest()
        if self._free_rows:
            prefix.slot, prefix.left_by, prefix.is_snapshot = max(self._free_rows), sequence, True
            self._free_rows.remove(prefix.slot)
            sequence.snapshot = Snapshot(num_tokens, prefix.slot)
            self._keep(prefix, sequence.pages)

    def _give_up_snapshot(self, sequence: Sequence) -> None:
        """Forgets the snapshot that an ended sequence has not left."""
        left = sequence.snapshot
        prefix = None if left is None else self.kept.get(left.slot)
        is_left = any(prefix is noted for noted, _ in self._noted)
        if prefix is not None and prefix.left_by is sequence and not is_left:
            self._forget(prefix)

    def _keep_state(self, sequence: Sequence) -> bool:
        """Keeps a sequence's state unless another has the same tokens; drops those that it
        continues.
        """
        num_tokens = sequence.num_computed_tokens
        token_ids = sequence.keys(0, num_tokens)
        prefix = prefix_of(sequence, token_ids, num_tokens, self._tick())
        for other, num_common in self._index.alike(prefix):
            if num_common == len(prefix) <= other.num_ready:
                other.last_used = prefix.last_used
                return False
            if num_common == len(other) and not other.is_snapshot:
                self._forget(other)
        self._keep(prefix, sequence.pages)
        return True

    def _keep(self, prefix: Prefix, pages: array[int]) -> None:
        prefix.pages = pages[: self._num_pages(len(prefix))]
        for page in prefix.pages:
            self._num_keeping[page] += 1
        self.kept[prefix.slot] = prefix
        self._index.add(prefix)
        if len(self.kept) > self._max_kept:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        self._forget(min(self.kept.values(), key=lambda prefix: prefix.last_used))

    def _forget(self, prefix: Prefix) -> None:
        del self.kept[prefix.slot]
        self._index.remove(prefix)
        self._free_rows.append(prefix.slot)
        if prefix.left_by is not None:
            prefix.left_by.snapshot = None
        for page in reversed(prefix.pages):
            self._num_keeping[page] -= 1
            self._free_if_unheld(page)

    def _extend(self, sequence: Sequence, num_tokens: int) -> None:
        for _ in range(self._num_pages(num_tokens) - len(sequence.pages)):
            while not self._free:
                self._forget_oldest()
            page = self._free.take(sequence.pages[-1] if sequence.pages else -1)
            self._hold([page])
            sequence.pages.append(page)

    def _hold(self, pages: Iterable[int]) -> None:
        for page in pages:
            self.num_used += not self._num_running[page]
            self._num_running[page] += 1

    def _free_if_unheld(self, page: int) -> None:
        if not self._num_running[page] and not self._num_keeping[page]:
            self._free.add(page)


KVCacheManager = Pages | StatePages


def new_space(
    shapes: list[LayerShape], size: PagedSize, *, shares: bool, snapshots: bool = False
) -> KVCacheManager:
    """The scheduler's view of an empty cache; prefixes are shared or not."""
    pages = size.num_pages, size.page_size
    if not keep_states(shapes):
        return Pages(*pages, shares=shares, most_kept=size.most_kept)
    num_seqs, num_own = size.max_num_seqs, size.num_prefix_rows
    is_bounded = size.most_kept is not None
    max_kept = num_own + (max(_FEWEST_KEPT, num_seqs // 4) if is_bounded else num_seqs)
    rows = num_seqs + num_own
    return StatePages(*pages, rows, max_kept=max_kept if shares else 0, snapshots=snapshots)

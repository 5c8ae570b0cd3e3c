"""Pages of sequences that have states beside keys and values, and the rows of tables that hold
these.

A state is that of all its tokens, and nothing of fewer. So it is kept with the content of the page
that it ends in, and a prompt shares up to the last content that has one. An ended sequence leaves
the state of its last token, a preempted one too. Where the runner takes snapshots, a prompt that
begins like a known one also leaves its state, as it passes the last page that they have in common:
states are worth keeping where prompts branch (https://arxiv.org/abs/2411.19379, section 4.1).

Rows of kept states are free for running sequences, the least recently used first. Row 0 is never
given out: padding writes there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from operator import attrgetter

from ..sequence.sequence import Sequence, Snapshot
from .layer_shapes import LayerShape, keep_states
from .pages import Content, PagedSize, Pages, SharedPages, StateCopy, key_of, start_after

MIN_TOKENS = 32  # a state of fewer saves less than it costs
_FEWEST_KEPT = 4  # states


class StatePages(Pages):
    """Pages, and a row of states for each sequence; where it ``shares``, rows keep states of ended
    sequences, and ``snapshots`` of others.
    """

    def __init__(self, size: PagedSize, *, shares: bool = True, snapshots: bool = False) -> None:
        self._num_rows = self._max_kept = size.max_num_seqs
        if size.most_kept is not None:
            self._max_kept = max(_FEWEST_KEPT, self._num_rows // 4)
        self._takes_snapshots = snapshots and shares
        super().__init__(size, shares=shares)

    def clear(self) -> None:
        super().clear()
        self.kept: dict[int, Content] = {}  # by row, the least recently used first
        self._passed: list[Content] = []  # their states are there when the step is over
        self._free_rows = list(range(self._num_rows, 0, -1))

    def allocate(self, sequence: Sequence) -> list[StateCopy]:
        """Gives a sequence a row, the pages that it shares, and its own."""
        shared = self.find(sequence)
        if shared.row:
            self.kept[shared.row] = self.kept.pop(shared.row)
        sequence.slot, sequence.snapshot = self._take_row(), None
        copies = self._allocate(sequence, shared)
        known = shared.known
        if self._takes_snapshots and known and known.end >= shared.num_ready + MIN_TOKENS:
            self._leave_snapshot(sequence, known)
        return copies

    def note_computed(self, sequence: Sequence, num_computed: int) -> None:
        super().note_computed(sequence, num_computed)
        left = sequence.snapshot
        if left is not None and left.num_tokens <= num_computed:
            self._passed.append(self.kept[left.slot])

    def finish_step(self) -> None:
        super().finish_step()
        for content in self._passed:
            content.await_none()
        self._passed.clear()

    def free(self, sequence: Sequence) -> None:
        """Takes a sequence's room back; its state and pages may stay known."""
        if sequence not in self._held:
            return
        left, num_tokens = sequence.snapshot, sequence.num_computed_tokens
        if left is not None and self.kept[left.slot] not in self._passed:
            self._drop_state(self.kept[left.slot])
        content = self._last_content(sequence) if num_tokens >= MIN_TOKENS else None
        super().free(sequence)
        if content is None or content.row or self._contents.get(content.key) is not content:
            self._free_rows.append(sequence.slot)
            return
        for earlier in self._known_states(sequence, num_tokens):
            if not earlier.is_snapshot:
                self._drop_state(earlier)  # that it continues
        self._keep(content, sequence.slot)

    def free_uncomputed(self, sequence: Sequence) -> None:
        self._passed = [content for content in self._passed if content.awaited is not sequence]
        super().free_uncomputed(sequence)

    def distrust(self, sequence: Sequence) -> None:
        """Forgets the states of what it begins with too."""
        for content in self._known_states(sequence, sequence.num_computed_tokens):
            self._drop_state(content)
        super().distrust(sequence)

    def _find(self, sequence: Sequence) -> SharedPages:
        num_tokens, size = sequence.num_shareable_tokens, self.page_size
        known = self._known(sequence, num_tokens)
        num_ready = size * sum(1 for _ in takewhile(attrgetter("is_ready"), known))
        states = list(self._states(sequence, num_tokens, known))
        usable = (
            one for one in states if not one.awaited and one.end - one.end % size <= num_ready
        )
        source = max(usable, key=attrgetter("end"), default=None)
        pages, end = known[: source.end // size if source else 0], source.end if source else 0
        coming = max((one.end for one in states), default=0)
        return SharedPages(
            [one.page for one in pages],
            pages[-1] if pages else None,
            num_ready=end,
            num_coming=coming if coming >= end + MIN_TOKENS else end,
            begun=source if end % size else None,
            row=source.row if source else 0,
            known=known[-1] if known else None,
        )

    def _known_states(self, sequence: Sequence, num_tokens: int) -> list[Content]:
        return list(self._states(sequence, num_tokens, self._known(sequence, num_tokens)))

    def _states(
        self, sequence: Sequence, num_tokens: int, known: list[Content]
    ) -> Iterator[Content]:
        """The contents with a state that a sequence's first ``num_tokens`` begin with, whose full
        pages are ``known``.
        """
        size = self.page_size
        yield from (content for content in known if content.row)
        for first, last in zip(range(0, num_tokens, size), (None, *known), strict=False):
            token_ids = tuple(sequence.keys(first, min(first + size, num_tokens)))
            for content in self._beginning.get((start_after(sequence, last), token_ids[0]), ()):
                part = content.key[1]
                if content.row and len(part) < size and token_ids[: len(part)] == part:
                    yield content

    def _last_content(self, sequence: Sequence) -> Content | None:
        """The content that the computed tokens of a sequence end in, or None where one before it is
        forgotten.
        """
        self._keep_computed(sequence)
        num_tokens = sequence.num_computed_tokens
        known, num_full = self._known(sequence, num_tokens), num_tokens // self.page_size
        if not self._shares or len(known) < num_full:
            return None
        last = known[-1] if known else None
        if last is not None and last.end == num_tokens:
            return last
        key = key_of(sequence, last, num_full * self.page_size, num_tokens)
        page = sequence.pages[num_full]
        return self._contents.get(key) or self._note(key, page, num_tokens, is_ready=True)

    def _take_row(self) -> int:
        """There is a row while fewer than all sequences run."""
        if not self._free_rows:
            self._drop_oldest()
        # The lowest, so that rows of a step mostly follow each other: they are read as a view.
        row = min(self._free_rows)
        self._free_rows.remove(row)
        return row

    def _leave_snapshot(self, sequence: Sequence, content: Content) -> None:
        """Has a sequence leave its state after a content, in a row that is free or kept."""
        if content.row or self._contents.get(content.key) is not content:
            return  # it has one, or its page was needed
        if not self._free_rows and self.kept:
            self._drop_oldest()
        if self._free_rows:
            row = max(self._free_rows)
            self._free_rows.remove(row)
            content.awaited, content.is_snapshot = sequence, True
            sequence.snapshot = Snapshot(content.end, row)
            self._keep(content, row)

    def _keep(self, content: Content, row: int) -> None:
        content.row, self.kept[row] = row, content
        self._found.clear()
        if len(self.kept) > self._max_kept:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._drop_state(next(iter(self.kept.values())))

    def _drop_state(self, content: Content) -> None:
        if len(content.key[1]) < self.page_size:
            self._forget(content)  # no sequence shares it
        else:
            self._release(content)

    def _forget(self, content: Content) -> None:
        if content.row:
            self._release(content)
        super()._forget(content)

    def _release(self, content: Content) -> None:
        """Frees the row of a content's state."""
        del self.kept[content.row]
        self._free_rows.append(content.row)
        content.await_none()
        content.row, content.is_snapshot = 0, False
        self._found.clear()


def new_space(
    shapes: list[LayerShape], size: PagedSize, *, shares: bool, snapshots: bool = False
) -> Pages:
    """The scheduler's view of an empty cache; prefixes are shared or not."""
    if keep_states(shapes):
        return StatePages(size, shares=shares, snapshots=snapshots)
    return Pages(size, shares=shares)

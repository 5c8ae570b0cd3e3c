"""Assigns pages of keys and values to sequences, and finds those that a new prompt shares.

A page is ``page_size`` tokens of a sequence. Full pages are shared by reference and never written
again; of the next page that begins alike a sequence begins with a copy. After its last sequence a
page's content stays known until the page is needed, the least recently used first. A page is found
by its tokens and the number of the content before it. Contents' numbers are never given twice, so
what is found is equal, token by token.

No sequence reads a number that another left, for 0 times NaN is NaN, and no mask hides it: pages
are read up to a sequence's own length, states (state_pages.py) begin as zeros. Shared pages may
hold NaN because of tokens that their readers don't have: in a prompt's chunk a token attends,
behind a mask, to those after it. So a sequence with NaN scores leaves nothing and takes back what
is kept of its beginning; one that began with a shared prefix is computed again by itself
(in_flight_engine.py).

Page 0 is never given out: padding writes there.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter

from ..sequence.sequence import Sequence

# Tokens, by the kind of device. torch's FlashAttention takes pages of multiples of 256 alone:
# aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_varlen_fwd. Prefixes are
# shared page by page, so that they are small elsewhere.
PAGE_SIZES = {"cpu": 16, "cuda": 256}

GIB = 2**30
_LEAST_SHARE = 64  # of a page: copying it for less costs more than it saves

# A page's key: the text before it (a content's number, or for a first page the adapter and the
# salt), and its tokens.
_Key = tuple[object, tuple[int, ...]]
_Start = tuple[object, int]  # the text before it, and its first token


def num_pages_of(num_tokens: int, page_size: int) -> int:
    return -(-num_tokens // page_size)


@dataclass(frozen=True)
class PagedSize:
    """The cache's size, page 0 included. One sequence of ``max_model_len`` tokens always fits."""

    num_pages: int
    max_model_len: int
    max_num_seqs: int
    num_bytes: int
    page_size: int = PAGE_SIZES["cpu"]  # tokens
    most_kept: int | None = None  # pages that ended sequences leave known; None: all

    @property
    def num_tokens(self) -> int:
        return (self.num_pages - 1) * self.page_size

    @property
    def most_pages(self) -> int:
        return num_pages_of(self.max_model_len, self.page_size)

    @property
    def gib(self) -> float:
        return self.num_bytes / GIB

    def __str__(self) -> str:
        return (
            f"{self.num_pages - 1} pages of {self.page_size} tokens, at most {self.max_num_seqs} "
            f"sequences of {self.max_model_len}"
        )


@dataclass(frozen=True)
class StateCopy:
    """A copy of a row of states (0: none), and of a page."""

    source: int
    target: int
    page: tuple[int, int] | None = None


class FreePages:
    """Pages that nobody holds or knows. A sequence gets consecutive ones where it can: a CPU reads
    such as one.
    """

    _TOGETHER = 8  # pages of a group; a sequence begins one whose pages are all free where it can

    def __init__(self, num_pages: int) -> None:
        self._pages = dict.fromkeys(range(num_pages - 1, 0, -1))
        # Groups whose pages are all free, by their first page's number; the last is taken next.
        groups = range((num_pages // self._TOGETHER - 1) * self._TOGETHER, 0, -self._TOGETHER)
        self._free_groups = dict.fromkeys(groups)

    def __len__(self) -> int:
        return len(self._pages)

    def take(self, after: int) -> int:
        """The page after ``after`` (-1: none) if it is free, else another. There has to be one."""
        page = after + 1
        if page not in self._pages:
            page = next(reversed(self._free_groups or self._pages))
        del self._pages[page]
        self._free_groups.pop(page - page % self._TOGETHER, None)
        return page

    def add(self, page: int) -> None:
        self._pages[page] = None
        first = page - page % self._TOGETHER
        if all(one in self._pages for one in range(first, first + self._TOGETHER)):
            self._free_groups[first] = None


@dataclass(frozen=True)
class SharedPages:
    """Pages that a prompt shares: full ``pages``, with their ``last`` content, and the beginning
    of the ``begun`` one. ``num_ready`` tokens are computed; ``num_coming`` will be when running
    prompts are. With states: the ``row`` of the last token's (0: none), and the last content that
    is ``known``, with a state or without.
    """

    pages: list[int]
    last: Content | None
    num_ready: int
    num_coming: int
    begun: Content | None = None
    row: int = 0
    known: Content | None = None

    @property
    def is_worth_waiting_for(self) -> bool:
        return self.num_coming > self.num_ready


@dataclass(eq=False)
class Content:
    """The content of a page up to token ``end``. ``is_ready``: this step computes its tokens;
    ``is_written``: an earlier one did. ``row`` has the state after them (0: none), or is to have it
    once the sequence that is ``awaited`` has passed them.
    """

    key: _Key
    number: int
    page: int
    end: int
    is_ready: bool
    is_written: bool
    row: int = 0
    awaited: Sequence | None = None
    is_snapshot: bool = False

    def await_none(self) -> None:
        if self.awaited is not None:
            self.awaited.snapshot = None
            self.awaited = None


@dataclass
class _Held:
    """A sequence's pages: how many are known, the last one's content, the contents that it will
    compute (``coming``), and the one whose beginning it copied (``begun``).
    """

    num_known: int
    last: Content | None
    begun: Content | None = None
    coming: deque[Content] = field(default_factory=deque)


class Pages:
    """Pages ``1 .. num_pages-1`` with reference counts. Sequences that begin alike share them where
    it ``shares``.
    """

    def __init__(self, size: PagedSize, *, shares: bool = True) -> None:
        self.num_pages, self.page_size, self._shares = size.num_pages, size.page_size, shares
        self._most_kept = size.num_pages if size.most_kept is None else size.most_kept
        self._held: dict[Sequence, _Held] = {}
        self.clear()

    @property
    def num_used(self) -> int:
        return self.num_pages - 1 - self._num_free

    @property
    def num_kept(self) -> int:
        """The number of known pages that no sequence holds."""
        return len(self._idle)

    def clear(self) -> None:
        for sequence in self._held:
            sequence.pages = array("i")
        self._held.clear()
        self._free = FreePages(self.num_pages)
        self._num_holders = [0] * self.num_pages
        self._idle: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self._contents: dict[_Key, Content] = {}
        self._content_of: dict[int, Content] = {}  # by page
        self._unwritten: list[Content] = []
        self._beginning: dict[_Start, list[Content]] = {}
        self._num_contents = 0  # that ever were
        self._found: dict[Sequence, SharedPages] = {}  # until a content comes, is ready or goes

    def find(self, sequence: Sequence) -> SharedPages:
        """The pages that a prompt shares; tokens whose logits are wanted are computed."""
        if sequence not in self._found:
            self._found[sequence] = self._find(sequence)
        return self._found[sequence]

    def has_room(self, sequence: Sequence) -> bool:
        """Returns True if there are pages for its prompt and one more for each running sequence
        that may need it.
        """
        shared = self.find(sequence).pages
        num_needed = self._num_pages(sequence.num_prefill_tokens) - len(shared)
        # The last token is not computed.
        longest = ((one, one.num_prompt_tokens + one.params.max_tokens - 1) for one in self._held)
        num_needed += sum(self._num_pages(most) > len(one.pages) for one, most in longest)
        num_idle = sum(not self._num_holders[page] for page in shared)
        return num_needed + num_idle <= self._num_free

    def allocate(self, sequence: Sequence) -> list[StateCopy]:
        """Gives a sequence the pages that it shares, and its own for the rest of its prompt."""
        return self._allocate(sequence, self.find(sequence))

    def _allocate(self, sequence: Sequence, shared: SharedPages) -> list[StateCopy]:
        for page in shared.pages:
            self._hold(page)
        num_own = self._num_pages(sequence.num_prefill_tokens) - len(shared.pages)
        sequence.pages = array("i", shared.pages)
        self._extend(sequence, num_own)
        sequence.num_computed_tokens = sequence.num_reused_tokens = shared.num_ready
        num_full, begun = len(shared.pages), shared.begun
        held = self._held[sequence] = _Held(num_full, shared.last, begun)
        self._note_full(sequence, held, sequence.num_prefill_tokens, is_ready=False)
        copied = None if begun is None else (begun.page, sequence.pages[num_full])
        return [StateCopy(shared.row, sequence.slot, copied)] if copied or shared.row else []

    def append(self, sequence: Sequence, num_tokens: int) -> bool:
        """Adds pages until ``num_tokens`` fit; returns False if too few are free."""
        num_more = self._num_pages(num_tokens) - len(sequence.pages)
        if num_more <= 0:
            return True
        self._note_full(sequence, self._held[sequence], sequence.num_computed_tokens)
        if num_more > self._num_free:
            return False
        self._extend(sequence, num_more)
        return True

    def note_computed(self, sequence: Sequence, num_computed: int) -> None:
        """Shares these tokens with the step's other sequences: a layer's keys and values are
        written before its attention reads them.
        """
        coming = self._held[sequence].coming
        while coming and coming[0].end <= num_computed:
            coming[0].is_ready = True
            self._unwritten.append(coming.popleft())
            self._found.clear()

    def finish_step(self) -> None:
        for content in self._unwritten:
            content.is_written = True
        self._unwritten.clear()
        self._found.clear()  # holds no sequence that is gone

    def free(self, sequence: Sequence) -> None:
        """Takes a sequence's pages back; full ones stay known."""
        if sequence not in self._held:
            return
        self._keep_computed(sequence)
        for page in reversed(sequence.pages):
            self._let_go(page)
        del self._held[sequence]
        sequence.pages = array("i")

    def distrust(self, sequence: Sequence) -> None:
        """Forgets the contents of a sequence's pages, shared ones too."""
        held = self._held.get(sequence)
        if held and held.begun and self._contents.get(held.begun.key) is held.begun:
            self._forget(held.begun)
        for page in sequence.pages:
            if page in self._content_of:
                self._forget(self._content_of[page])

    def free_uncomputed(self, sequence: Sequence) -> None:
        """Takes back the pages of a sequence that was not computed, and forgets its own."""
        for page in sequence.pages[sequence.num_reused_tokens // self.page_size :]:
            if page in self._content_of:
                self._forget(self._content_of[page])
        if sequence in self._held:
            self._held[sequence].coming.clear()
        sequence.num_computed_tokens = 0
        self.free(sequence)

    def _num_pages(self, num_tokens: int) -> int:
        return num_pages_of(num_tokens, self.page_size)

    @property
    def _num_free(self) -> int:
        return len(self._free) + len(self._idle)

    def _known(self, sequence: Sequence, num_tokens: int) -> list[Content]:
        """The full pages of a sequence's first ``num_tokens`` that are known, from its first on."""
        found: list[Content] = []
        for end in range(self.page_size, num_tokens + 1, self.page_size):
            key = key_of(sequence, found[-1] if found else None, end - self.page_size, end)
            content = self._contents.get(key)
            if content is None:
                break
            found.append(content)
        return found

    def _find(self, sequence: Sequence) -> SharedPages:
        known = self._known(sequence, sequence.num_shareable_tokens)
        ready = list(takewhile(attrgetter("is_ready"), known))
        last = ready[-1] if ready else None
        begun, num_common = self._best_beginning(sequence, last, len(ready) * self.page_size)
        num_ready = len(ready) * self.page_size + num_common
        num_coming = max(num_ready, len(known) * self.page_size)
        return SharedPages([one.page for one in ready], last, num_ready, num_coming, begun)

    def _best_beginning(
        self, sequence: Sequence, last: Content | None, num_full: int
    ) -> tuple[Content | None, int]:
        """The written page that continues most like the sequence, and with how many tokens."""
        end = min(num_full + self.page_size, sequence.num_shareable_tokens)
        best, most = None, self.page_size // _LEAST_SHARE
        token_ids = sequence.keys(num_full, end) if end > num_full + most else []
        start = start_after(sequence, last)
        for content in self._beginning.get((start, token_ids[0]), ()) if token_ids else ():
            pairs = enumerate(zip(token_ids, content.key[1], strict=False))
            num_common = next((at for at, (one, other) in pairs if one != other), len(token_ids))
            if content.is_written and num_common > most:
                best, most = content, num_common
        return best, most if best is not None else 0

    def _note_full(
        self, sequence: Sequence, held: _Held, num_tokens: int, *, is_ready: bool = True
    ) -> None:
        """Makes full pages of the first ``num_tokens`` known."""
        num_full = num_tokens // self.page_size if self._shares else 0
        for index in range(held.num_known, num_full):
            start, end = index * self.page_size, (index + 1) * self.page_size
            key = key_of(sequence, held.last, start, end)
            content = self._contents.get(key)
            if content is None:
                content = self._note(key, sequence.pages[index], end, is_ready=is_ready)
                if not is_ready:
                    held.coming.append(content)
            held.num_known, held.last = index + 1, content

    def _keep_computed(self, sequence: Sequence) -> None:
        """Makes computed pages known, and forgets those that were to come."""
        held = self._held[sequence]
        self._note_full(sequence, held, sequence.num_computed_tokens)
        while held.coming:
            self._forget(held.coming.popleft())

    def _note(self, key: _Key, page: int, end: int, *, is_ready: bool) -> Content:
        self._num_contents += 1
        content = Content(key, self._num_contents, page, end, is_ready, is_ready)
        self._contents[key] = self._content_of[page] = content
        self._beginning.setdefault(_start(key), []).append(content)
        self._found.clear()
        return content

    def _forget(self, content: Content) -> None:
        del self._contents[content.key]
        del self._content_of[content.page]
        start = _start(content.key)
        self._beginning[start].remove(content)
        if not self._beginning[start]:
            del self._beginning[start]
        if content.page in self._idle:
            del self._idle[content.page]
            self._free.add(content.page)
        self._found.clear()

    def _extend(self, sequence: Sequence, num_more: int) -> None:
        for _ in range(num_more):
            if not self._free:
                self._forget_oldest()
            page = self._free.take(sequence.pages[-1] if sequence.pages else -1)
            self._num_holders[page] = 1
            sequence.pages.append(page)

    def _forget_oldest(self) -> None:
        self._forget(self._content_of[next(iter(self._idle))])

    def _hold(self, page: int) -> None:
        if not self._num_holders[page]:
            del self._idle[page]
        self._num_holders[page] += 1

    def _let_go(self, page: int) -> None:
        self._num_holders[page] -= 1
        if self._num_holders[page]:
            return
        if page in self._content_of:
            self._idle[page] = None
            if len(self._idle) > self._most_kept:
                self._forget_oldest()
        else:
            self._free.add(page)


def _start(key: _Key) -> _Start:
    return key[0], key[1][0]


def start_after(sequence: Sequence, last: Content | None) -> object:
    return sequence.cache_start if last is None else last.number


def key_of(sequence: Sequence, last: Content | None, first: int, end: int) -> _Key:
    return start_after(sequence, last), tuple(sequence.keys(first, end))

"""Finds the longest prefix that a prompt shares with tokens whose states, or log-probabilities, are
kept.

Hashes only narrow the search; what is found was compared token by token, so two prompts of one hash
never share.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..sequence.sequence import Sequence, TokenLogprobs

TokenIds = np.ndarray[Any, np.dtype[np.int32]]

MIN_TOKENS = 32  # a state of fewer saves less than it costs
MOST_KNOWN = 2**16  # tokens of prompts whose log-probabilities are kept; some 25 MB
_Start = tuple[object, ...]


@dataclass(eq=False)
class Prefix:
    """``token_ids`` (tokens,) whose state, after ``num_ready`` of them, is in row ``slot``.
    ``start`` is equal for all prompts that can share it.
    """

    token_ids: TokenIds
    start: tuple[object, ...]
    slot: int
    num_ready: int
    last_used: int = 0
    left_by: Sequence | None = None  # who is to leave it there as a snapshot
    is_snapshot: bool = False
    pages: array[int] = field(default_factory=lambda: array("i"))  # that stay with it

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class SharedPrefix:
    """``num_ready`` of a prompt's tokens can be copied from ``source`` now, ``num_coming`` once
    running prompts are computed.
    """

    source: Prefix | None = None
    num_ready: int = 0
    num_coming: int = 0

    @property
    def is_worth_waiting_for(self) -> bool:
        return self.num_coming >= self.num_ready + MIN_TOKENS


def prefix_of(
    sequence: Sequence, token_ids: list[int], num_ready: int, last_used: int = 0
) -> Prefix:
    start = _start(sequence, token_ids)
    return Prefix(as_array(token_ids), start, sequence.slot, num_ready, last_used)


def as_array(token_ids: list[int]) -> TokenIds:
    """(tokens,) int32 of one id at least; three times faster than numpy's from a list."""
    return np.frombuffer(array("i", token_ids), dtype=np.int32)


def num_common_tokens(one: TokenIds, other: TokenIds) -> int:
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


class PrefixIndex:
    """Prefixes by their start; with ``whole`` one is shared whole or not at all, as states are."""

    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole
        self._by_start: dict[tuple[object, ...], list[Prefix]] = {}

    def add(self, prefix: Prefix) -> None:
        """Takes a prefix of at least MIN_TOKENS."""
        self._by_start.setdefault(prefix.start, []).append(prefix)

    def remove(self, prefix: Prefix) -> None:
        alike = self._by_start[prefix.start]
        alike.remove(prefix)
        if not alike:
            del self._by_start[prefix.start]

    def find(self, sequence: Sequence) -> SharedPrefix:
        """What a prompt shares, of tokens whose logits nobody wants. A preempted sequence's output
        is part of its prompt.
        """
        if not self._by_start:
            return SharedPrefix()
        prompt = sequence.keys(0, sequence.num_prefill_tokens)
        candidates = self._by_start.get(_start(sequence, prompt))
        num_tokens = sequence.num_shareable_tokens
        if candidates is None or num_tokens < MIN_TOKENS:
            return SharedPrefix()
        token_ids = as_array(prompt)[:num_tokens]
        source, num_ready, num_coming = None, 0, 0
        for candidate in candidates:
            alike = self._num_shared(token_ids, candidate)
            num_coming = max(num_coming, alike)
            if min(alike, candidate.num_ready) > max(num_ready, MIN_TOKENS - 1):
                source, num_ready = candidate, min(alike, candidate.num_ready)
        return SharedPrefix(source, num_ready, num_coming)

    def num_common(self, sequence: Sequence) -> int:
        """The tokens of the longest beginning that a prompt of more than MIN_TOKENS, less its last
        token, has in common with any prefix.
        """
        prompt = sequence.prompt_keys
        candidates = self._by_start.get(_start(sequence, prompt), ())
        token_ids = as_array(prompt)[:-1]
        return max((num_common_tokens(token_ids, one.token_ids) for one in candidates), default=0)

    def alike(self, prefix: Prefix) -> Iterator[tuple[Prefix, int]]:
        """Other prefixes of the same start, and how many tokens each shares."""
        for other in list(self._by_start.get(prefix.start, ())):
            if other is not prefix:
                yield other, self._num_shared(prefix.token_ids, other)

    def _num_shared(self, token_ids: TokenIds, prefix: Prefix) -> int:
        num_common = num_common_tokens(token_ids, prefix.token_ids)
        return 0 if self.whole and num_common < len(prefix) else num_common


def _start(sequence: Sequence, token_ids: list[int]) -> tuple[object, ...]:
    return (*sequence.cache_start, *token_ids[:MIN_TOKENS])


class KnownPrompts:
    """The log-probabilities of the newest prompts: one that begins like them needs only what comes
    after, and shares keys and values before.
    """

    def __init__(self) -> None:
        self._by_start: dict[_Start, deque[tuple[TokenIds, list[TokenLogprobs]]]] = {}
        self._starts: deque[_Start] = deque()  # the oldest prompt's first
        self._num_tokens = 0

    def add(self, sequence: Sequence) -> None:
        """Keeps the log-probabilities of a sequence's whole prompt."""
        if sequence.num_prompt_tokens <= MIN_TOKENS:
            return
        start = sequence.params.num_prompt_logprobs, *_start(sequence, sequence.prompt_keys)
        entry = as_array(sequence.prompt_keys), sequence.prompt_logprobs
        self._by_start.setdefault(start, deque()).append(entry)
        self._starts.append(start)
        self._num_tokens += sequence.num_prompt_tokens
        while self._num_tokens > MOST_KNOWN:
            oldest = self._starts.popleft()
            token_ids, _ = self._by_start[oldest].popleft()
            self._num_tokens -= len(token_ids)
            if not self._by_start[oldest]:
                del self._by_start[oldest]

    def fill(self, sequence: Sequence) -> None:
        """Gives a sequence what is known of its prompt."""
        if sequence.prompt_logprobs or not sequence.lacks_prompt_logprobs or not self._starts:
            return
        start = sequence.params.num_prompt_logprobs, *_start(sequence, sequence.prompt_keys)
        prompt = as_array(sequence.prompt_keys)
        most, best = 0, list[TokenLogprobs]()
        for token_ids, known in self._by_start.get(start, ()):
            num_common = num_common_tokens(prompt, token_ids)
            if num_common > most:
                most, best = num_common, known
        sequence.prompt_logprobs += best[: max(0, most - 1)]

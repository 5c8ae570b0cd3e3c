"""Finds the longest prefix that a prompt shares with the tokens whose states are kept.

Hashes only narrow the search; what is found was compared token by token, so two prompts of one hash
never share.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..sequence.sequence import Sequence

TokenIds = np.ndarray[Any, np.dtype[np.int32]]

MIN_TOKENS = 32  # a state of fewer saves less than it costs


@dataclass(eq=False)
class Prefix:
    """``token_ids`` (tokens,) of one sequence; the state after ``num_ready`` of them is in row
    ``slot``, or will be. ``start`` is equal for all that can share with it.
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
    """The prefix that a prompt shares: ``num_ready`` of its tokens can be copied from ``source``
    now, ``num_coming`` when the prompts that are being computed are ready.
    """

    source: Prefix | None = None
    num_ready: int = 0
    num_coming: int = 0

    @property
    def is_worth_waiting_for(self) -> bool:
        return self.num_coming >= self.num_ready + MIN_TOKENS


NO_SHARED_PREFIX = SharedPrefix()


def prefix_of(
    sequence: Sequence, token_ids: list[int], num_ready: int, last_used: int = 0
) -> Prefix:
    """What a sequence's row holds."""
    start = _start(sequence, token_ids)
    return Prefix(as_array(token_ids), start, sequence.slot, num_ready, last_used)


def as_array(token_ids: list[int]) -> TokenIds:
    """Ids of at least one token, (tokens,) int32; from a list, three times faster than numpy's."""
    return np.frombuffer(array("i", token_ids), dtype=np.int32)


def num_common_tokens(one: TokenIds, other: TokenIds) -> int:
    """How many tokens both begin with."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


class PrefixIndex:
    """All that may be shared, by how it starts; ``whole`` where a prefix is shared whole or not at
    all, because its row holds a state, which is that of all its tokens.
    """

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

    def clear(self) -> None:
        self._by_start.clear()

    def find(self, sequence: Sequence) -> SharedPrefix:
        """The most that a prompt shares, of tokens whose logits nobody wants. Of a preempted
        sequence, what it generated is part of the prompt.
        """
        if not self._by_start:
            return NO_SHARED_PREFIX
        prompt = sequence.keys(0, sequence.num_prefill_tokens)
        candidates = self._by_start.get(_start(sequence, prompt))
        num_tokens = sequence.num_shareable_tokens
        if candidates is None or num_tokens < MIN_TOKENS:
            return NO_SHARED_PREFIX
        token_ids = as_array(prompt)[:num_tokens]
        source, num_ready, num_coming = None, 0, 0
        for candidate in candidates:
            alike = self._num_shared(token_ids, candidate)
            num_coming = max(num_coming, alike)
            if min(alike, candidate.num_ready) > max(num_ready, MIN_TOKENS - 1):
                source, num_ready = candidate, min(alike, candidate.num_ready)
        return SharedPrefix(source, num_ready, num_coming)

    def num_common(self, sequence: Sequence) -> int:
        """The most tokens that a prompt, less its last, has in common with any, whole or not."""
        prompt = sequence.prompt_keys
        candidates = self._by_start.get(_start(sequence, prompt), ())
        if not candidates or len(prompt) <= MIN_TOKENS:
            return 0
        token_ids = as_array(prompt)[:-1]
        return max((num_common_tokens(token_ids, one.token_ids) for one in candidates), default=0)

    def alike(self, prefix: Prefix) -> Iterator[tuple[Prefix, int]]:
        """The others that start as ``prefix`` does, and how many tokens it shares with each."""
        for other in list(self._by_start.get(prefix.start, ())):
            if other is not prefix:
                yield other, self._num_shared(prefix.token_ids, other)

    def _num_shared(self, token_ids: TokenIds, prefix: Prefix) -> int:
        num_common = num_common_tokens(token_ids, prefix.token_ids)
        return 0 if self.whole and num_common < len(prefix) else num_common


def _start(sequence: Sequence, token_ids: list[int]) -> tuple[object, ...]:
    """What sequences that can share have in common, their first MIN_TOKENS among it."""
    return (*sequence.cache_start, *token_ids[:MIN_TOKENS])

"""The log-probabilities of the prompts that were computed lately: one that begins like them needs
its own from there on alone, and shares keys and values before.
"""

from __future__ import annotations

from collections import deque

from ..sequence.sequence import Sequence, TokenLogprobs
from .prefix_index import MIN_TOKENS, TokenIds, as_array, num_common_tokens

_MOST_TOKENS = 2**16  # of all prompts together; some 25 MB

_Start = tuple[object, ...]


class KnownPrompts:
    """Keeps the newest."""

    def __init__(self) -> None:
        self._by_start: dict[_Start, deque[tuple[TokenIds, list[TokenLogprobs]]]] = {}
        self._starts: deque[_Start] = deque()  # the oldest prompt's first
        self._num_tokens = 0

    def add(self, sequence: Sequence) -> None:
        """Takes a sequence that has all of its prompt's."""
        if sequence.num_prompt_tokens <= MIN_TOKENS:
            return
        start = _start(sequence)
        entry = as_array(sequence.prompt_keys), sequence.prompt_logprobs
        self._by_start.setdefault(start, deque()).append(entry)
        self._starts.append(start)
        self._num_tokens += sequence.num_prompt_tokens
        while self._num_tokens > _MOST_TOKENS:
            self._drop_oldest()

    def fill(self, sequence: Sequence) -> None:
        """Gives a sequence without any what is known of its prompt."""
        if sequence.prompt_logprobs or not sequence.lacks_prompt_logprobs or not self._starts:
            return
        alike = self._by_start.get(_start(sequence), ())
        prompt = as_array(sequence.prompt_keys)
        most, best = 0, list[TokenLogprobs]()
        for token_ids, known in alike:
            num_common = num_common_tokens(prompt, token_ids)
            if num_common > most:
                most, best = num_common, known
        sequence.prompt_logprobs += best[: max(0, most - 1)]

    def _drop_oldest(self) -> None:
        start = self._starts.popleft()
        token_ids, _ = self._by_start[start].popleft()
        self._num_tokens -= len(token_ids)
        if not self._by_start[start]:
            del self._by_start[start]


def _start(sequence: Sequence) -> _Start:
    """What prompts have in common of which one knows of the other."""
    num = sequence.params.num_prompt_logprobs
    return (num, *sequence.cache_start, *sequence.prompt_keys[:MIN_TOKENS])

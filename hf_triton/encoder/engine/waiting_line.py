"""Which encodings the next step computes. Knows no tensors and no threads.

Requests take turns, one encoding each, oldest first: a client's batch of a thousand rows, or a long
document's windows, share the steps with requests of one text instead of standing before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from ..texts.encoding import Encoding


class Request(Protocol):
    """Something whose encodings are to be computed, in order."""

    @property
    def items(self) -> Sequence[Encoding]:
        """All of them."""


R = TypeVar("R", bound=Request)


class WaitingLine(Generic[R]):
    """The requests with encodings that no step has taken yet."""

    def __init__(self, max_num_tokens: int) -> None:
        self._max_num_tokens = max_num_tokens
        self._line: deque[tuple[R, int]] = deque()  # and its next encoding's index

    def __bool__(self) -> bool:
        return bool(self._line)

    def add(self, requests: Iterable[R]) -> None:
        """Puts requests at the end of the line; each has at least one encoding."""
        self._line.extend((request, 0) for request in requests)

    def take(self) -> list[tuple[R, int]]:
        """The next step: (request, index of its encoding), at most ``max_num_batched_tokens``
        together, but at least one.
        """
        taken: list[tuple[R, int]] = []
        num_left = self._max_num_tokens
        while self._line:
            request, index = self._line[0]
            num_tokens = len(request.items[index])
            if taken and num_tokens > num_left:
                break
            self._line.popleft()
            taken.append((request, index))
            num_left -= num_tokens
            if index + 1 < len(request.items):
                self._line.append((request, index + 1))
        return taken

    def remove(self, requests: Iterable[R]) -> None:
        """Forgets what is left of some requests."""
        gone = set(map(id, requests))
        self._line = deque(entry for entry in self._line if id(entry[0]) not in gone)

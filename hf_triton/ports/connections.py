"""The open connections of a public port: how many there may be, and which goes for another."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

_LOOKED_UP_AT_ONCE = 256


class Connection(Protocol):
    """A client's, with the time by which it must have got on."""

    deadline: float

    @property
    def is_idle(self) -> bool:
        """Whether it has no request, or not all of one."""

    def abort(self) -> None:
        """Closes at once."""


Kind = TypeVar("Kind", bound=Connection)


class Connections(Generic[Kind]):
    """At most ``most``. One more, and the idle one is closed whose time ends first, so that slow
    senders keep nobody out.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: set[Kind] = set()
        self._next: list[tuple[float, Kind]] = []  # to be closed, the first one last

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Kind]:
        return iter(tuple(self._open))

    def add(self, connection: Kind) -> None:
        """A client has come."""
        closed = self._idle_one() or connection if len(self) >= self.most else None
        self._open.add(connection)
        if closed:
            self._open.discard(closed)
            closed.abort()

    def remove(self, connection: Kind) -> None:
        """It has gone."""
        self._open.discard(connection)

    def _idle_one(self) -> Kind | None:
        """Looks through all for some at once: a flood of clients would have it do nothing else."""
        while True:
            if not self._next:
                idle = ((one.deadline, one) for one in self._open if one.is_idle)
                self._next = nsmallest(_LOOKED_UP_AT_ONCE, idle, key=itemgetter(0))[::-1]
            if not self._next:
                return None
            deadline, found = self._next.pop()
            if found in self._open and found.is_idle and found.deadline == deadline:
                return found

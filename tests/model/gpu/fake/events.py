"""What a GPU was told to do: kernels, copies, waits and replays, each with the line that asked."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("kernel", "h2d", "d2h", "wait", "replay")
_HERE = str(Path(__file__).parent)  # which the roots may hold, too
# Whose line an event is told by: ours, or transformers' where that is nearer.
_ROOTS = ("/hf_triton/", "/site-packages/transformers/", "/tests/")


@dataclass(frozen=True)
class Event:
    """One thing the host asked for. ``kind`` is one of KINDS; ``op`` the operator or call;
    ``where`` file, line and function.
    """

    kind: str
    op: str
    where: str
    shape: tuple[int, ...] = ()
    num_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.op} at {self.where}"


@dataclass
class Capture:
    """The events of one captured graph."""

    where: str
    events: list[Event] = field(default_factory=list)
    num_replays: int = 0

    @property
    def kernels(self) -> list[Event]:
        return [event for event in self.events if event.kind == "kernel"]


class Log(list[Event]):
    """Events in the order they were asked for."""

    def count(self, kind: str) -> int:  # type: ignore[override]
        """How many events are of that kind."""
        return sum(event.kind == kind for event in self)

    def told(self, *kinds: str) -> str:
        """The events of these kinds, each place once with how often, for an assertion's text."""
        found = Counter(str(event) for event in self if event.kind in kinds)
        return "\n".join(f"{number:4} x {text}" for text, number in found.most_common())


def caller() -> str:
    """The nearest line outside of this folder's stand-ins that a root holds."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        root = next((root for root in _ROOTS if root in name), None)
        if root and not name.startswith(_HERE):
            short = name.rsplit(root, 1)[1]
            return f"{short}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"

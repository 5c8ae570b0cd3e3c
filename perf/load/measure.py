"""From the times of single requests to the figures of a level; no server, no clock, no files.

All times are in seconds on one clock. A level is a closed loop: ``clients`` callers who each send
the next request as soon as their last one is answered. Counted is the time in which all callers are
busy: from the moment as many requests are answered as there are callers (the start, when all begin
at once, is behind) to the moment when the last request is sent (the loop begins to empty). Work in
progress at the two ends is alike, so what ends in between is what the target does in that time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ANSWER_TIMEOUT_S = 900.0  # 256 callers of a server that answers one at a time wait for minutes


@dataclass(frozen=True)
class Record:
    """What became of one request; times in seconds, lengths in tokens."""

    index: int
    sent_s: float
    done_s: float
    max_tokens: int
    num_output_tokens: int = 0
    problem: str | None = None  # an error, or an answer of another length than it had to have
    chunk_s: Sequence[float] = ()  # when the pieces of a streamed answer came
    process_cpu_s: float = 0.0  # of the process that sends and receives, until then

    @property
    def latency_s(self) -> float:
        return self.done_s - self.sent_s


@dataclass(frozen=True)
class Policy:
    """When a level has sent enough: requests and seconds both reached, or the time limit; and how
    long an answer may take before the server counts as lost.
    """

    min_requests: int
    min_s: float
    max_s: float
    answer_timeout_s: float = ANSWER_TIMEOUT_S

    def enough(self, num_sent: int, elapsed_s: float) -> bool:
        """Whether no further request is to be sent."""
        if elapsed_s >= self.max_s:
            return True
        return num_sent >= self.min_requests and elapsed_s >= self.min_s


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 to 1) of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def counted(records: Sequence[Record], clients: int) -> tuple[list[Record], float]:
    """The records that end while all callers are busy, and how long that was in seconds.

    A run too short to have such a time is counted whole.
    """
    ordered = sorted(records, key=lambda record: record.done_s)
    if not ordered:
        return [], 0.0
    start_s = ordered[min(clients, len(ordered)) - 1].done_s
    end_s = max(record.sent_s for record in ordered)
    inside = [record for record in ordered if start_s < record.done_s <= end_s]
    if len(inside) < clients:
        return ordered, ordered[-1].done_s - min(record.sent_s for record in ordered)
    return inside, end_s - start_s


def client_cores(records: Sequence[Record], clients: int) -> float:
    """Cores that the load generator kept busy, taken from the server's; 0 where unknown."""
    inside, _ = counted(records, clients)
    ordered = sorted(inside, key=lambda record: record.done_s)
    if len(ordered) < 2 or ordered[-1].done_s == ordered[0].done_s:
        return 0.0
    first, last = ordered[0], ordered[-1]
    return (last.process_cpu_s - first.process_cpu_s) / (last.done_s - first.done_s)

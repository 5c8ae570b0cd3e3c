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
from itertools import pairwise
from typing import Any

from perf.report.schema import Load, Measurement, Percentiles

ANSWER_TIMEOUT_S = 900.0  # 256 callers of a server that answers one at a time wait for minutes
_SHARES = (0.50, 0.90, 0.95, 0.99)


@dataclass(frozen=True)
class Record:
    """The outcome of one request; times in seconds, lengths in tokens."""

    sent_s: float
    done_s: float
    max_tokens: int = 0
    num_output_tokens: int = 0
    problem: str | None = None  # an error, or an answer of another length than it had to have
    chunk_s: Sequence[float] = ()  # when the pieces of a streamed answer came

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


def between_chunks(record: Record) -> Sequence[float]:
    """Seconds from each piece of a streamed answer to the next."""
    return [later - sooner for sooner, later in pairwise(record.chunk_s)]


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


def measurement_of(
    records: Sequence[Record],
    load: Load,
    repeat: int,
    started: str,
    command: str = "",
) -> Measurement:
    """The figures of the counted time; answers with a problem count as errors, wherever in the
    level they were. Tokens are those asked for, or those answered where none were.
    """
    inside, seconds = counted(records, load.concurrency or 1)
    problems = [record.problem for record in records if record.problem is not None]
    return Measurement(
        load=load,
        repeat=repeat,
        started=started,
        num_errors=len(problems),
        first_error=problems[0] if problems else None,
        command=command,
        **figures([record for record in inside if record.problem is None], seconds),
    )


def figures(good: Sequence[Record], seconds: float) -> dict[str, Any]:
    """The fields of a Measurement that ``good`` answers in so many seconds tell."""
    tokens = sum(record.max_tokens or record.num_output_tokens for record in good)
    first = [record.chunk_s[0] - record.sent_s for record in good if record.chunk_s]
    return {
        "duration_s": seconds,
        "num_requests": len(good),
        "requests_per_s": len(good) / seconds if seconds else 0.0,
        "output_tokens_per_s": tokens / seconds if seconds and tokens else None,
        "latency": percentiles([record.latency_s for record in good]),
        "time_to_first_token": percentiles(first),
        "inter_token_latency": percentiles(
            [one for record in good for one in between_chunks(record)]
        ),
    }


def percentiles(seconds: Sequence[float]) -> Percentiles | None:
    """In milliseconds, by nearest rank: the smallest value that at least the share of them does
    not exceed. None of nothing.
    """
    if not seconds:
        return None
    ordered = sorted(seconds)
    ranks = (max(0, math.ceil(share * len(ordered)) - 1) for share in _SHARES)
    found = (sum(ordered) / len(ordered), *(ordered[rank] for rank in ranks))
    return Percentiles(*(round(1000 * one, 4) for one in found))

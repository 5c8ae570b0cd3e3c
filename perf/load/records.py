"""Figures of a level, from the times of single requests in seconds on one clock. Counted is the
time in which all callers are busy: from the moment when as many requests are answered as there are
callers, to the moment when the last request is sent. The work in progress is alike at both ends, so
the requests that end in between measure the server's throughput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from perf.report.schema import Load, Measurement, Percentiles

ANSWER_TIMEOUT_S = 900.0  # with 256 callers and one answer at a time, callers wait for minutes
_SHARES = (0.50, 0.90, 0.95, 0.99)


@dataclass(frozen=True)
class Record:
    sent_s: float
    done_s: float
    max_tokens: int = 0
    num_output_tokens: int = 0
    problem: str | None = None  # an error, or an answer of another length than it had to have
    chunk_s: Sequence[float] = ()  # when the pieces of a streamed answer came


@dataclass(frozen=True)
class Policy:
    """A level ends when both minimums are reached, or the time limit is."""

    min_requests: int
    min_s: float
    max_s: float
    answer_timeout_s: float = ANSWER_TIMEOUT_S

    def enough(self, num_sent: int, elapsed_s: float) -> bool:
        if elapsed_s >= self.max_s:
            return True
        return num_sent >= self.min_requests and elapsed_s >= self.min_s


def counted(records: Sequence[Record], clients: int) -> tuple[list[Record], float]:
    """The records that end while all callers are busy, and the seconds of that time; all of a run
    that is too short for that.
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


def measurement_of(records: Sequence[Record], load: Load, repeat: int, started: str) -> Measurement:
    """Failures count even outside the counted time. Tokens are the requested ones, if known."""
    inside, seconds = counted(records, load.concurrency or 1)
    problems = [record.problem for record in records if record.problem is not None]
    return Measurement(
        load=load,
        repeat=repeat,
        started=started,
        num_errors=len(problems),
        first_error=problems[0] if problems else None,
        **figures([record for record in inside if record.problem is None], seconds),
    )


def figures(good: Sequence[Record], seconds: float) -> dict[str, Any]:
    tokens = sum(record.max_tokens or record.num_output_tokens for record in good)
    first = [record.chunk_s[0] - record.sent_s for record in good if record.chunk_s]
    return {
        "duration_s": round(seconds, 3),
        "num_requests": len(good),
        "requests_per_s": round(len(good) / seconds, 4) if seconds else 0.0,
        "output_tokens_per_s": tokens / seconds if seconds and tokens else None,
        "latency": percentiles([record.done_s - record.sent_s for record in good]),
        "time_to_first_token": percentiles(first),
        "inter_token_latency": percentiles(
            [end - start for record in good for start, end in pairwise(record.chunk_s)]
        ),
    }


def percentiles(seconds: Sequence[float]) -> Percentiles | None:
    """Milliseconds by nearest rank: the smallest value that at least that share does not exceed."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    ranks = (max(0, math.ceil(share * len(ordered)) - 1) for share in _SHARES)
    found = (sum(ordered) / len(ordered), *(ordered[rank] for rank in ranks))
    return Percentiles(*(round(1000 * one, 4) for one in found))

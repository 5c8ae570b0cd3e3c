"""From the records of single requests to a measurement of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from perf.load.measure import Record, counted, percentile
from perf.report.schema import Load, Measurement, Percentiles

_SHARES = (0.50, 0.90, 0.95, 0.99)
Waits = Callable[[Record], Sequence[float]]


def between_chunks(record: Record) -> Sequence[float]:
    """Seconds from each piece of a streamed answer to the next."""
    return [later - sooner for sooner, later in pairwise(record.chunk_s)]


def per_token(record: Record) -> Sequence[float]:
    """Seconds a token after the first piece, which may hold several tokens as others do."""
    if len(record.chunk_s) < 2 or record.num_output_tokens < 2:
        return []
    return [(record.chunk_s[-1] - record.chunk_s[0]) / (record.num_output_tokens - 1)]


def measurement_of(
    records: Sequence[Record],
    load: Load,
    repeat: int,
    started: str,
    command: str = "",
    waits: Waits = per_token,
) -> Measurement:
    """What all callers saw in the counted time; answers with a problem count as errors, wherever in
    the level they were. Tokens are those asked for, or those answered where none were.
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
        **figures([record for record in inside if record.problem is None], seconds, waits),
    )


def figures(good: Sequence[Record], seconds: float, waits: Waits) -> dict[str, Any]:
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
        "inter_token_latency": percentiles([one for record in good for one in waits(record)]),
    }


def percentiles(seconds: Sequence[float]) -> Percentiles | None:
    """In milliseconds; None of nothing."""
    if not seconds:
        return None
    found = (sum(seconds) / len(seconds), *(percentile(seconds, share) for share in _SHARES))
    return Percentiles(*(round(1000 * one, 4) for one in found))

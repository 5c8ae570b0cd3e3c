"""From the records of a level to a measurement. Knows no server and no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from perf.load.measure import Record, counted, percentile
from perf.report.schema import Load, Measurement, Percentiles


def summarize(
    records: Sequence[Record],
    load: Load,
    repeat: int,
    started: str,
    machine: Mapping[str, float],
) -> Measurement:
    """Answers with a problem count as errors, wherever in the level they were."""
    inside, seconds = counted(records, load.concurrency or 1)
    good = [record for record in inside if record.problem is None]
    problems = [record.problem for record in records if record.problem is not None]
    tokens = sum(record.num_output_tokens for record in good)
    first = [record.chunk_s[0] - record.sent_s for record in good if record.chunk_s]
    return Measurement(
        load=load,
        repeat=repeat,
        started=started,
        duration_s=seconds,
        num_requests=len(good),
        num_errors=len(problems),
        first_error=problems[0] if problems else None,
        requests_per_s=len(good) / seconds if seconds else 0.0,
        output_tokens_per_s=tokens / seconds if seconds and tokens else None,
        latency=percentiles([record.latency_s for record in good]),
        time_to_first_token=percentiles(first),
        inter_token_latency=percentiles(_between(good)),
        machine=machine,
    )


def _between(records: Sequence[Record]) -> list[float]:
    """Seconds a token after the first piece, by request: a piece may hold several tokens."""
    return [
        (record.chunk_s[-1] - record.chunk_s[0]) / (record.num_output_tokens - 1)
        for record in records
        if len(record.chunk_s) > 1 and record.num_output_tokens > 1
    ]


def percentiles(seconds: Sequence[float]) -> Percentiles | None:
    """In milliseconds; None of nothing."""
    if not seconds:
        return None
    shares = (percentile(seconds, share) * 1000 for share in (0.5, 0.9, 0.95, 0.99))
    return Percentiles(fmean(seconds) * 1000, *shares)

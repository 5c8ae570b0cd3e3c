"""From the records of single requests to a measurement of a run."""

from __future__ import annotations

from collections.abc import Sequence

from perf.load.measure import Record, counted, percentile
from perf.report.schema import Load, Measurement, Percentiles

_SHARES = (0.50, 0.90, 0.95, 0.99)


def measurement_of(
    records: Sequence[Record], load: Load, repeat: int, started: str, command: str = ""
) -> Measurement:
    """What all callers saw in the counted time; answers with a problem count as errors, wherever in
    the level they were.
    """
    inside, seconds = counted(records, load.concurrency or 1)
    good = [record for record in inside if record.problem is None]
    problems = [record.problem for record in records if record.problem is not None]
    tokens = sum(record.num_output_tokens for record in good)
    first = [record.chunk_s[0] - record.sent_s for record in good if record.chunk_s]
    between = [  # seconds a token after the first piece: a piece may hold several tokens
        (record.chunk_s[-1] - record.chunk_s[0]) / (record.num_output_tokens - 1)
        for record in good
        if len(record.chunk_s) > 1 and record.num_output_tokens > 1
    ]
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
        latency=percentiles([1000 * record.latency_s for record in good]),
        time_to_first_token=percentiles([1000 * each for each in first]),
        inter_token_latency=percentiles([1000 * each for each in between]),
        command=command,
    )


def percentiles(values_ms: Sequence[float]) -> Percentiles | None:
    """None of nothing."""
    if not values_ms:
        return None
    mean = sum(values_ms) / len(values_ms)
    figures = (mean, *(percentile(values_ms, share) for share in _SHARES))
    return Percentiles(*(round(figure, 4) for figure in figures))

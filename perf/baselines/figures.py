"""From the records of a level to its line in the run. Knows no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perf.baselines.plan import Step
from perf.load.measure import Record, counted, percentile, summarize
from perf.report.schema import Measurement, Percentiles


@dataclass(frozen=True)
class Circumstances:
    """What a level was measured beside: when it began (ISO 8601, UTC), and what the machine did."""

    started: str
    command: str
    machine: Mapping[str, float]


def measurement(
    step: Step, records: Sequence[Record], num_wanted: int, beside: Circumstances
) -> Measurement:
    """The figures of a level; stable where as many requests were counted as were wanted."""
    level = summarize(records, step.clients)
    inside, _ = counted(records, step.clients)
    good = [record for record in inside if record.problem is None]
    return Measurement(
        load=step.load,
        repeat=step.round,
        started=beside.started,
        duration_s=level.counted_s,
        num_requests=level.num_requests,
        num_errors=level.num_problems,
        first_error=level.first_problem,
        requests_per_s=level.num_requests / level.counted_s if level.counted_s else 0.0,
        stable=level.num_requests >= num_wanted,
        latency=percentiles([record.latency_s for record in good]),
        time_to_first_token=percentiles([r.chunk_s[0] - r.sent_s for r in good if r.chunk_s]),
        inter_token_latency=percentiles(
            [later - sooner for record in good for sooner, later in pairwise(record.chunk_s)]
        ),
        output_tokens_per_s=level.useful_tokens_per_s,
        server=tokens_per_chunk(good),
        machine=beside.machine,
        command=beside.command,
    )


def percentiles(seconds: Sequence[float]) -> Percentiles | None:
    """Of times in seconds; None where there are none."""
    if not seconds:
        return None
    p50, p90, p95, p99 = (percentile(seconds, share) * 1000 for share in (0.5, 0.9, 0.95, 0.99))
    return Percentiles(sum(seconds) / len(seconds) * 1000, p50, p90, p95, p99)


def tokens_per_chunk(records: Sequence[Record]) -> Mapping[str, float]:
    """How many tokens came in a piece of a streamed answer, in the mean."""
    num_chunks = sum(len(record.chunk_s) for record in records)
    if not num_chunks:
        return {}
    return {"tokens_per_chunk": sum(r.num_output_tokens for r in records) / num_chunks}

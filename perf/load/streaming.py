"""From the times of streamed answers to what a reader of them waits for; no server, no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perf.load.measure import Record, counted, percentile


@dataclass(frozen=True)
class Streaming:
    """Seconds that the readers of a level waited, in its counted time (see ``measure.py``)."""

    num_answers: int
    num_chunks: int
    tokens_per_chunk: float
    first_p50_s: float  # from sending a request to its first chunk
    first_p99_s: float
    between_p50_s: float  # from a chunk to the next one of the same answer
    between_p99_s: float


def streaming(records: Sequence[Record], clients: int) -> Streaming | None:
    """The figures of a level; None where nothing was streamed."""
    inside, _ = counted(records, clients)
    answers = [record for record in inside if record.chunk_s and record.problem is None]
    if not answers:
        return None
    first = [record.chunk_s[0] - record.sent_s for record in answers]
    between = [later - sooner for record in answers for sooner, later in pairwise(record.chunk_s)]
    num_chunks = sum(len(record.chunk_s) for record in answers)
    return Streaming(
        num_answers=len(answers),
        num_chunks=num_chunks,
        tokens_per_chunk=sum(record.num_output_tokens for record in answers) / num_chunks,
        first_p50_s=percentile(first, 0.50),
        first_p99_s=percentile(first, 0.99),
        between_p50_s=percentile(between, 0.50),
        between_p99_s=percentile(between, 0.99),
    )


def client_cores(records: Sequence[Record], clients: int) -> float:
    """Cores that the load generator kept busy, taken from the server's; 0 where unknown."""
    inside, _ = counted(records, clients)
    ordered = sorted(inside, key=lambda record: record.done_s)
    if len(ordered) < 2 or ordered[-1].done_s == ordered[0].done_s:
        return 0.0
    first, last = ordered[0], ordered[-1]
    return (last.process_cpu_s - first.process_cpu_s) / (last.done_s - first.done_s)

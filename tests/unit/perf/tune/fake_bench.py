"""A bench without a server: a machine whose best settings are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from perf.report.schema import Load, Measurement, Percentiles, Run
from perf.tune.bench import Measure, TrialError
from perf.tune.space import Settings

RUN = Run("tune", "", "hf-triton perf tune demo", "", {}, {})
SEQS, TOKENS, WIDE = (
    "options.max_num_seqs",
    "options.max_num_batched_tokens",
    "instance_group.count",
)


@dataclass
class FakeBench:
    """Throughput grows with ``max_num_seqs`` up to 32 and falls beyond; latency grows with it all
    the way. ``broken`` settings do not load.
    """

    broken: Callable[[Settings], bool] = lambda _: False
    interrupt_at: int | None = None  # the start that a Ctrl-C comes in
    served: list[Settings] = field(default_factory=list)

    @contextmanager
    def serving(self, settings: Settings) -> Iterator[Measure]:
        if self.interrupt_at == len(self.served):
            raise KeyboardInterrupt
        self.served.append(settings)
        if self.broken(settings):
            raise TrialError("model 'demo' failed to load: out of memory")
        yield lambda _: self._measure(settings)

    def _measure(self, settings: Settings) -> Measurement:
        per_s = tokens_per_s(settings)
        latency = 10.0 * float(settings.get(SEQS) or 64)
        return measurement(settings, per_s, latency)

    def failed(self, settings: Settings, reason: str) -> Measurement:
        return measurement(settings, 0.0, None, error=reason)


def tokens_per_s(settings: Settings) -> float:
    """Highest, 320, at 32 sequences and 512 tokens."""
    seqs, tokens = float(settings.get(SEQS) or 64), float(settings.get(TOKENS) or 512)
    return 10 * (seqs if seqs <= 32 else 32 - (seqs - 32) / 8) - abs(tokens - 512) / 64


def measurement(
    settings: Settings,
    tokens: float,
    p99_ms: float | None,
    ttft_ms: float | None = None,
    error: str | None = None,
    repeat: int = 0,
) -> Measurement:
    return Measurement(
        load=Load("demo", "http-infer", concurrency=8, settings=settings),
        repeat=repeat,
        started="2026-01-01T00:00:00+00:00",
        duration_s=1.0,
        num_requests=0 if error else 100,
        num_errors=1 if error else 0,
        first_error=error,
        requests_per_s=tokens / 16,
        output_tokens_per_s=tokens,
        latency=times(p99_ms),
        time_to_first_token=times(ttft_ms),
    )


def times(p99_ms: float | None) -> Percentiles | None:
    return None if p99_ms is None else Percentiles(p99_ms, p99_ms, p99_ms, p99_ms, p99_ms)

"""Runs as measuring would leave them, made from a seed: plausible queues, not true figures."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from perf.report import schema
from perf.report.schema import Load, Measurement, Percentiles, Run

MODELS, ENDPOINTS = ("demo", "minilm"), ("http-infer", "grpc-infer", "http-generate-stream")
CONCURRENCIES, REPEATS = (1, 2, 4, 8, 16, 32, 64), 3
RUN = Run(
    kind="sweep",
    created="2026-03-01T09:30:00Z",
    command="hf-triton perf sweep scenario.yaml --output perf-results/demo",
    commit="0123456789ab",
    hardware={"cpu": "AMD EPYC 9R14", "cores": 2, "memory_gib": 15.4, "load_average": 0.12},
    versions={"python": "3.11.7", "torch": "2.13.0", "transformers": "5.23.0", "triton": "2.51.0"},
    title="Demo models on two cores",
    scenario={"models": [{"name": "demo"}], "concurrency": [1, 64], "repeats": 3},
    notes=("The machine was otherwise idle.",),
)


def sweep(
    models: Sequence[str] = MODELS,
    endpoints: Sequence[str] = ENDPOINTS,
    concurrencies: Sequence[int] = CONCURRENCIES,
    repeats: int = REPEATS,
    seed: int = 0,
    slower: float = 1.0,
) -> Iterator[Measurement]:
    """Each load, ``repeats`` times; ``slower`` is a factor on every time."""
    drawn = random.Random(seed)
    for repeat in range(repeats):
        for model in models:
            for endpoint in endpoints:
                for concurrency in concurrencies:
                    load = Load(model, endpoint, concurrency=concurrency, input_name="short")
                    yield measured(load, repeat, drawn, slower)


def measured(load: Load, repeat: int, drawn: random.Random, slower: float = 1.0) -> Measurement:
    """A server that batches up to 16 callers and then makes them wait."""
    callers, streams = float(load.concurrency or 1), load.endpoint.endswith("stream")
    wait = max(1.0, callers / 16)
    p50 = 90.0 * slower * drawn.gauss(1.0, 0.02) * (1 + 0.09 * min(callers, 16)) * wait
    latency = _percentiles(p50, drawn)
    rate = 1000 * callers / latency.mean_ms
    return Measurement(
        load,
        repeat,
        f"2026-03-01T09:{30 + repeat:02d}:00Z",
        duration_s=10.0,
        num_requests=int(rate * 10),
        num_errors=0,
        requests_per_s=rate,
        stable=callers < 64 or repeat > 0,
        latency=latency,
        time_to_first_token=_percentiles(p50 / 6, drawn) if streams else None,
        inter_token_latency=_percentiles(p50 / 40, drawn) if streams else None,
        output_tokens_per_s=rate * 32 if streams else None,
        server={"queue_share": 1 - 1 / (1 + wait), "batch_occupancy": min(callers, 16) * 0.9},
        machine={"cpu_share": min(0.98, 0.4 + 0.1 * callers), "memory_gib": 1.25},
        command=f"perf_analyzer -m {load.target} --concurrency-range {load.concurrency}",
    )


def _percentiles(p50: float, drawn: random.Random) -> Percentiles:
    tail = drawn.uniform(1.5, 2.2)
    spread = (1 + (tail - 1) * share for share in (0.1, 0.0, 0.5, 0.7, 1.0))
    return Percentiles(*(p50 * each for each in spread))


def write(folder: Path, measurements: Iterator[Measurement], run: Run = RUN) -> Path:
    """The run's folder with all of them; no renderings."""
    schema.write_run(folder, run)
    for each in measurements:
        schema.append(folder, each)
    return folder

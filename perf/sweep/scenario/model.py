"""What a sweep is to measure: the scenario file's content with defaults filled in. Reads no file,
knows no server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from generator.yaml_file.nodes import Node
from perf.sweep.scenario.ranges import Lengths

ENDPOINTS = ("http-infer", "http-generate", "grpc-infer", "grpc-stream")
# perf_analyzer (2.51) reads streams over gRPC only; tune and baselines load those over HTTP.
STREAMS = ("grpc-stream", "http-generate-stream")
FLAT_JSON = ("http-generate", "http-generate-stream")  # one request at a time, in JSON
SEVERAL_TIMES = 3  # windows whose throughput and latency have to agree: perf_analyzer's own rule


@dataclass(frozen=True)
class Measuring:
    """How long a load is measured; the words are perf_analyzer's."""

    window_s: float = 5.0
    window_requests: int | None = None  # windows of so many requests instead of so many seconds
    stability_percent: float = 10.0
    max_trials: int = 10
    warm_up_requests: int = 8  # at least; and one for each caller
    repeats: int = 1
    timeout_s: float = 0.0  # 0: by the windows


@dataclass(frozen=True)
class Addresses:
    """Of one server, each ``host:port``."""

    http: str
    grpc: str
    metrics: str


@dataclass(frozen=True)
class Inputs:
    """What requests carry. ``words`` counts words where ``prompt`` counts tokens."""

    prompt: tuple[Lengths, ...] = ()
    words: tuple[Lengths, ...] = ()
    output: tuple[Lengths, ...] = ()
    tensors: Mapping[str, Any] = field(default_factory=dict)  # further inputs, the same every time
    file: str | None = None  # in perf_analyzer's own form, instead of all the others
    tokenizer: str | None = None  # a tokenizer.json, where the model's own is not here


@dataclass(frozen=True)
class Scenario:
    """Every combination of its lists is a load."""

    name: str
    models: tuple[str, ...]
    endpoints: tuple[str, ...] = ()  # empty: by the model
    concurrency: tuple[int, ...] = ()
    request_rate: tuple[float, ...] = ()
    request_distribution: str = "constant"
    batch_sizes: tuple[int, ...] = (1,)
    inputs: Inputs = Inputs()
    measurement: Measuring = Measuring()
    url: Addresses | None = None
    node: Node | None = field(default=None, compare=False)  # where the file says it

    def place(self, key: str) -> Node | None:
        """Where the file has ``key`` of it."""
        return self.node.get(key) if self.node else None

    @property
    def num_loads(self) -> int:
        """How many it asks for, where its models have all its endpoints."""
        lengths = max(1, len(self.inputs.prompt or self.inputs.words))
        targets = len(self.models) * max(1, len(self.endpoints))
        levels = len(self.batch_sizes) * (len(self.concurrency) + len(self.request_rate))
        answers = max(1, len(self.inputs.output))
        return targets * lengths * answers * levels * self.measurement.repeats


@dataclass(frozen=True)
class Sweep:
    """All of it. ``file`` is the scenario's, empty where models.yaml alone said what to measure."""

    scenarios: tuple[Scenario, ...]
    title: str = ""
    url: Addresses | None = None
    serve: bool = False
    seed: int = 0
    file: str = ""


def as_values(sweep: Sweep) -> dict[str, Any]:
    """For run.json: equal where the same would be measured."""
    plain = tuple(replace(scenario, node=None) for scenario in sweep.scenarios)
    values = asdict(replace(sweep, scenarios=plain))
    del values["file"]
    for scenario in values["scenarios"]:
        del scenario["node"]
    return values


def usual_sweep(models: Sequence[str]) -> Sweep:
    """Where no scenario says it, a few minutes for each model: its usual endpoints with 1, 4 and 16
    requests at once.
    """
    measuring = Measuring(window_s=3.0, max_trials=6)
    scenarios = (
        Scenario(name=name, models=(name,), concurrency=(1, 4, 16), measurement=measuring)
        for name in models
    )
    return Sweep(tuple(scenarios), title=f"sweep of {', '.join(models)}"[:200])

"""The user's question: which model to tune, with which requests. Starts nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from generator.errors import ModelError, UsageError
from generator.models_yaml.reading import named
from generator.render.manifest import WEIGHTS_FOLDER
from generator.spec.model_spec import ModelSpec
from generator.spec.task_sets import MEDIA_TASKS
from hf_triton.runtime.weights.locked_files import repository_folder
from perf.report.schema import Measurement
from perf.sweep.scenario import Inputs, lengths

STREAM, INFER = "http-generate-stream", "http-infer"
_GENERATES = ("text-generation", "text2text-generation", *MEDIA_TASKS)
# Tasks that are sent their sample request, with its mask or media.
_ONE_SAMPLE = ("fill-mask", "pipeline")
_USUAL = {
    **dict.fromkeys(("text-generation", *MEDIA_TASKS), "prompt=64,output=64"),
    "text2text-generation": "prompt=32,output=32",
    "feature-extraction": "prompt=64",
}
_SYNTAX = "expected such as prompt=64,output=128 or prompt=16-256,output=8-64 (tokens)"
_FAILED_EXCESS = 100.0  # excess of a trial without figures, as a multiple of the bound
_WORST = 1e9  # a loss above any latency or throughput


@dataclass(frozen=True)
class Goal:
    """The highest throughput, or the lowest p99 latency, among settings that meet every bound."""

    wanted: Literal["throughput", "latency"]
    max_p99_ms: float | None = None  # of a request, from sending it to its whole answer
    max_ttft_ms: float | None = None  # p99 of the time to the first token of a stream

    def value(self, measurement: Measurement) -> float:
        if self.wanted == "throughput":
            # Output tokens per second where answers are text, else requests per second.
            tokens = measurement.output_tokens_per_s
            return measurement.requests_per_s if tokens is None else tokens
        return measurement.latency.p99_ms if measurement.latency else math.nan

    def excess(self, measurement: Measurement) -> dict[str, float]:
        """Returns by what share each broken bound is exceeded; failed requests have the bound 0."""
        sent = measurement.num_requests + measurement.num_errors
        found = {"errors": measurement.num_errors / sent if sent else _FAILED_EXCESS}
        for name, bound, times in (
            ("p99", self.max_p99_ms, measurement.latency),
            ("TTFT", self.max_ttft_ms, measurement.time_to_first_token),
        ):
            if bound is not None:
                found[name] = times.p99_ms / bound - 1 if times else _FAILED_EXCESS
        return {name: by for name, by in found.items() if by > 0}

    def is_met(self, measurement: Measurement) -> bool:
        return not self.excess(measurement)

    def loss(self, measurement: Measurement) -> float:
        """The number to minimise: a broken bound is worse than every setting that meets all."""
        beyond, value = sum(self.excess(measurement).values()), self.value(measurement)
        if beyond or math.isnan(value):
            return _WORST * (1 + beyond)
        return value if self.wanted == "latency" else -value

    def describe(self) -> str:
        bounds = [
            text.format(bound)
            for text, bound in (
                ("p99 at most {:g} ms", self.max_p99_ms),
                ("time to first token (p99) at most {:g} ms", self.max_ttft_ms),
            )
            if bound is not None
        ]
        wanted = "highest throughput" if self.wanted == "throughput" else "lowest p99 latency"
        return f"{wanted} with {' and '.join(bounds)}" if bounds else wanted


@dataclass(frozen=True)
class Request:
    """The options of the command line. A full measurement takes ``seconds``."""

    model: str
    config: Path
    repository: Path
    goal: Goal
    concurrency: int
    repeats: int
    trials: int
    seconds: float
    seed: int = 0
    search: Sequence[str] = ()
    load: str | None = None
    output: Path | None = None
    write: bool = False
    command: str = ""


def find_model(specs: Sequence[ModelSpec], name: str, config: Path) -> ModelSpec:
    """Raises ModelError where there is no such model, or the name stands for several."""
    spec = named([spec for spec in specs if spec.arm_of is None], name, config)
    if spec.ensemble is not None:
        raise ModelError(
            f"model '{name}' is an ensemble, whose steps each have settings of their own; tune "
            "takes models with layout: single"
        )
    if spec.canary is not None:
        raise ModelError(
            f"model '{name}' shares its requests with others (a canary): tune an entry that has "
            "none, then set its keys here"
        )
    return spec


def endpoint_of(spec: ModelSpec, goal: Goal) -> str:
    """A stream where the model has one, which shows the time to the first token too. Raises
    UsageError.
    """
    if goal.max_ttft_ms is not None and not spec.streaming:
        raise UsageError(
            f"--max-ttft-ms: model '{spec.name}' does not stream: it has no first token"
        )
    return STREAM if spec.streaming else INFER


def inputs_of(spec: ModelSpec, asked: str | None) -> Inputs:
    """Reads ``--load``, or the task's defaults. Raises UsageError."""
    given: dict[str, Any] = {}
    for part in (asked or _USUAL.get(spec.task, "")).split(","):
        name, _, value = part.strip().partition("=")
        key = f"{name}_tokens"
        if asked is None and not part:
            break
        if not value or key not in ("prompt_tokens", "output_tokens") or key in given:
            raise UsageError(f"--load: got '{asked}', {_SYNTAX}")
        try:
            given[key] = lengths(int(value) if value.isdecimal() else value.strip())
        except ValueError as error:
            raise UsageError(f"--load {name}: {error}") from None
    if asked and "output_tokens" in given and spec.task not in _GENERATES:
        raise UsageError(f"--load output: model '{spec.name}' ({spec.task}) generates no text")
    if asked and "prompt_tokens" in given and spec.task in _ONE_SAMPLE:
        raise UsageError(
            f"--load prompt: model '{spec.name}' ({spec.task}) is asked with a sample request"
        )
    return Inputs(**given)


def require_files(spec: ModelSpec, repository: Path) -> None:
    """Raises ModelError where the model's files were not fetched."""
    cache = repository / spec.name / WEIGHTS_FOLDER
    snapshots = repository_folder(cache, spec.source.text) / "snapshots"
    if spec.source.folder is None and not snapshots.is_dir():
        raise ModelError(
            f"the weights of model '{spec.name}' are not in {cache}: hf-triton fetch {spec.name}"
        )

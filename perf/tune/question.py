"""The user's question: which model to tune, with which requests. Starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.errors import ModelError, UsageError
from generator.render.manifest import WEIGHTS_FOLDER
from generator.spec.model_spec import ModelSpec
from generator.spec.runtime_rules import repository_folder, snapshot_folder
from generator.spec.task_sets import MEDIA_TASKS
from generator.yaml_file.schema import did_you_mean
from perf.sweep.scenario import Inputs, lengths
from perf.tune.goal import Goal

STREAM, INFER = "http-generate-stream", "http-infer"
ENDPOINTS = {"infer": INFER, "generate-stream": STREAM}
_GENERATES = ("text-generation", "text2text-generation", *MEDIA_TASKS)
_ONE_SAMPLE = (
    "fill-mask",
    "pipeline",
)  # tasks that are sent their sample request, with its mask or media
_USUAL = {
    **dict.fromkeys(("text-generation", *MEDIA_TASKS), "prompt=64,output=64"),
    "text2text-generation": "prompt=32,output=32",
    "feature-extraction": "prompt=64",
}
_SYNTAX = "expected such as prompt=64,output=128 or prompt=16-256,output=8-64 (tokens)"


@dataclass(frozen=True)
class Request:
    """The options of the command line. A search ends after ``trials``, after ``minutes``, or after
    ``patience`` trials without improvement; a full measurement takes ``seconds``.
    """

    model: str
    config: Path
    repository: Path
    goal: Goal
    concurrency: int
    repeats: int
    trials: int
    seconds: float
    minutes: float | None = None
    patience: int | None = None
    seed: int = 0
    search: Sequence[str] = ()
    fix: Sequence[str] = ()
    load: str | None = None
    endpoint: str | None = None
    output: Path | None = None
    write: bool = False
    command: str = ""


def find_model(specs: Sequence[ModelSpec], name: str, config: Path) -> ModelSpec:
    """Raises ModelError where there is no such model, or the name stands for several."""
    found = {spec.name: spec for spec in specs if spec.arm_of is None}
    if name not in found:
        raise ModelError(f"{config} has no model '{name}'{did_you_mean(name, found, 'models')}")
    spec = found[name]
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


def endpoint_of(spec: ModelSpec, wanted: str | None, goal: Goal) -> str:
    """The endpoint to measure: a stream where the model has one, since it shows the time to the
    first token too. Raises UsageError where the goal or the endpoint needs a stream and there is
    none.
    """
    name = ENDPOINTS[wanted] if wanted else STREAM if spec.streaming else INFER
    if name == STREAM and not spec.streaming:
        raise UsageError(f"--endpoint {wanted}: model '{spec.name}' does not stream")
    if goal.max_ttft_ms is not None and name != STREAM:
        why = "does not stream" if not spec.streaming else "is asked by /infer (--endpoint)"
        raise UsageError(f"--max-ttft-ms: model '{spec.name}' {why}: it has no first token")
    return name


def inputs_of(spec: ModelSpec, asked: str | None) -> Inputs:
    """The inputs of ``--load``, or the task's defaults: at most one length of prompts and one of
    answers. Raises UsageError.
    """
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


def files_of(spec: ModelSpec, repository: Path) -> Path | None:
    """The folder of the model's files; None where a cache holds several snapshots. Raises
    ModelError where nothing was fetched: a trial downloads nothing.
    """
    if spec.source.folder is not None:
        return spec.source.folder
    cache = repository / spec.name / WEIGHTS_FOLDER
    snapshots = repository_folder(cache, spec.source.text) / "snapshots"
    if not snapshots.is_dir():
        raise ModelError(
            f"the weights of model '{spec.name}' are not in {cache}: hf-triton fetch {spec.name}"
        )
    if spec.locked is not None:
        return snapshot_folder(cache, spec.source.text, spec.locked.commit)
    found = [path for path in snapshots.iterdir() if path.is_dir()]
    return found[0] if len(found) == 1 else None

"""What is asked: which model is tuned, how it is asked, and which settings are tried. Reads
models.yaml and the repository's cache of weights; starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from generator.errors import ModelError, UsageError
from generator.models_yaml.reading import load
from generator.render.manifest import WEIGHTS_FOLDER
from generator.spec.model_spec import ModelSpec
from generator.spec.runtime_rules import repository_folder, snapshot_folder
from generator.spec.task_folders import Task, find_tasks
from generator.spec.task_sets import MEDIA_TASKS
from perf.machine import num_cores
from perf.sweep.scenario import Inputs, lengths, plain
from perf.tune.bench import INFER, STREAM
from perf.tune.goal import Goal
from perf.tune.search import Effort
from perf.tune.space import Space, make_space, worth_trying

ENDPOINTS = {"infer": INFER, "generate-stream": STREAM}
_GENERATES = ("text-generation", "text2text-generation", *MEDIA_TASKS)
_ONE_SAMPLE = ("fill-mask", "pipeline")  # asked with their sample request, mask or media
_USUAL = {
    **dict.fromkeys(("text-generation", *MEDIA_TASKS), "prompt=64,output=64"),
    "text2text-generation": "prompt=32,output=32",
    "feature-extraction": "prompt=64",
}
_SYNTAX = "expected such as prompt=64,output=128 or prompt=16-256,output=8-64 (tokens)"


@dataclass(frozen=True)
class Request:
    """What the user asks for."""

    model: str
    config: Path
    repository: Path
    goal: Goal
    effort: Effort
    concurrency: int
    repeats: int
    seed: int
    search: Sequence[str] = ()
    fix: Sequence[str] = ()
    load: str | None = None
    endpoint: str | None = None
    output: Path | None = None
    write: bool = False
    command: str = ""


@dataclass(frozen=True)
class Question:
    """The same once models.yaml is read: what is tried of which model, and how it is asked."""

    request: Request
    tasks: Mapping[str, Task]
    spec: ModelSpec
    space: Space
    inputs: Inputs  # of --load, or what is usual
    endpoint: str
    files: Path | None  # of the model, where it is told which they are

    @classmethod
    def of(cls, request: Request) -> Question:
        """Raises GeneratorError."""
        tasks = find_tasks()
        spec = find_model(load(request.config, tasks), request.model, request.config)
        usual = worth_trying(spec, tasks[spec.task], request.concurrency, num_cores())
        space = make_space(spec, tasks[spec.task], request.search, request.fix, usual)
        inputs = inputs_of(spec, request.load)
        endpoint = endpoint_of(spec, request.endpoint, request.goal)
        return cls(
            request, tasks, spec, space, inputs, endpoint, files_of(spec, request.repository)
        )

    def scenario(self) -> dict[str, Any]:
        """What a search is the answer to; searches that differ in it have folders of their own."""
        request, space = self.request, self.space
        return {
            "model": self.spec.name,
            "entry": {key: plain(node) for key, node in self.spec.places.items()},
            "goal": request.goal.describe(),
            "endpoint": self.endpoint,
            "concurrency": request.concurrency,
            "input": self.inputs.model_dump(mode="json"),
            "search": {key: list(values) for key, values in space.dimensions.items()},
            "fixed": dict(space.fixed),
            "current": dict(space.current),
            "seconds": request.effort.seconds,
            "seed": request.seed,
        }


def find_model(specs: Sequence[ModelSpec], name: str, config: Path) -> ModelSpec:
    """Raises ModelError where there is no such model, or it is more than one model at once."""
    found = {spec.name: spec for spec in specs if spec.arm_of is None}
    if name not in found:
        close = get_close_matches(name, found, n=1)
        meant = f"; did you mean '{close[0]}'?" if close else ""
        raise ModelError(f"{config} has no model '{name}'; there are: {', '.join(found)}{meant}")
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
    """Streams where the model has them: they tell of the first token too.

    Raises UsageError where the goal or the endpoint needs a stream and there is none.
    """
    name = ENDPOINTS[wanted] if wanted else STREAM if spec.streaming else INFER
    if name == STREAM and not spec.streaming:
        raise UsageError(f"--endpoint {wanted}: model '{spec.name}' does not stream")
    if goal.max_ttft_ms is not None and name != STREAM:
        why = "does not stream" if not spec.streaming else "is asked by /infer (--endpoint)"
        raise UsageError(f"--max-ttft-ms: model '{spec.name}' {why}: it has no first token")
    return name


def inputs_of(spec: ModelSpec, asked: str | None) -> Inputs:
    """What ``--load`` says, or what is usual for the task: one length of prompts and of answers at
    most. Raises UsageError.
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
    """Where the model's files are; None where a cache has none that are told apart.

    Raises ModelError where nothing was fetched: a trial downloads nothing.
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

"""What is asked: which model is tuned, how it is asked, and which settings are tried. Reads
models.yaml and the repository's cache of weights; starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from generator.errors import ModelError, SpecError, UsageError
from generator.models_yaml.reading import load
from generator.render.manifest import WEIGHTS_FOLDER
from generator.spec.model_spec import ModelSpec
from generator.spec.runtime_rules import repository_folder, snapshot_folder
from generator.spec.task_folders import Task, find_tasks
from generator.spec.task_sets import MEDIA_TASKS
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Report
from perf.machine import num_cores
from perf.sweep.scenario import ranges
from perf.sweep.scenario.file import read_sweep
from perf.sweep.scenario.model import Inputs
from perf.sweep.scenario.ranges import Lengths
from perf.tune.goal import Goal
from perf.tune.private_repository import PrivateRepository
from perf.tune.search import Effort
from perf.tune.space import Space, make_space, plain, worth_trying

STREAM, INFER = "http-generate-stream", "http-infer"
ENDPOINTS = {"infer": INFER, "generate-stream": STREAM}
_GENERATES = ("text-generation", "text2text-generation", *MEDIA_TASKS)
_ONE_SAMPLE = ("fill-mask", "pipeline")  # asked with their sample request, mask or media
_USUAL = {
    **dict.fromkeys(("text-generation", *MEDIA_TASKS), (64, 64)),
    "text2text-generation": (32, 32),
    "feature-extraction": (64,),
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

    @classmethod
    def of(cls, request: Request) -> Question:
        """Raises GeneratorError."""
        tasks = find_tasks()
        spec = find_model(load(request.config, tasks), request.model, request.config)
        usual = worth_trying(spec, tasks[spec.task], request.concurrency, num_cores())
        space = make_space(spec, tasks[spec.task], request.search, request.fix, usual)
        inputs = inputs_of(spec, request.load)
        endpoint = endpoint_of(spec, request.endpoint, request.goal)
        return cls(request, tasks, spec, space, inputs, endpoint)

    def repository(self, folder: Path) -> PrivateRepository:
        """One of the model alone, in a temporary folder."""
        places = self.request.config, self.request.repository
        return PrivateRepository(folder, self.spec, self.tasks, *places)

    def scenario(self) -> dict[str, Any]:
        """What a search is the answer to; searches that differ in it have folders of their own."""
        request, space = self.request, self.space
        return {
            "model": self.spec.name,
            "entry": {key: plain(node) for key, node in self.spec.places.items()},
            "goal": request.goal.describe(),
            "endpoint": self.endpoint,
            "concurrency": request.concurrency,
            "prompt_tokens": self.inputs.prompt[0].label if self.inputs.prompt else "",
            "output_tokens": self.inputs.output[0].label if self.inputs.output else "",
            "search": {each.key: list(each.values) for each in space.dimensions},
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
    most. Raises UsageError, SpecError.
    """
    if asked is None:
        usual = [(Lengths((length,)),) for length in _USUAL.get(spec.task, ())]
        return Inputs(**dict(zip(("prompt", "output"), usual, strict=False)))  # type: ignore[arg-type]
    is_file = asked.endswith((".yaml", ".yml"))
    found = _of_scenario(Path(asked), spec) if is_file else _parsed(asked)
    if found.output and spec.task not in _GENERATES:
        raise UsageError(f"--load output: model '{spec.name}' ({spec.task}) generates no text")
    if found.prompt and spec.task in _ONE_SAMPLE:
        raise UsageError(
            f"--load prompt: model '{spec.name}' ({spec.task}) is asked with a sample request"
        )
    return found


def counted_by(inputs: Inputs, files: Path | None) -> Inputs:
    """With the tokenizer among the model's files; where there is none, words are counted."""
    tokenizer = files / "tokenizer.json" if files else None
    if tokenizer is not None and tokenizer.is_file():
        return replace(inputs, tokenizer=str(tokenizer))
    return replace(inputs, prompt=(), words=inputs.prompt)


def _parsed(text: str) -> Inputs:
    """Parses ``prompt=64,output=8-128``."""
    given: dict[str, tuple[Lengths, ...]] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in ("prompt", "output") or name in given:
            raise UsageError(f"--load: got '{text}', {_SYNTAX}, or a sweep's scenario (YAML)")
        report, written = Report(), value.strip()
        node = Node(int(written) if written.isdecimal() else written, 0, 0, name, written)
        found = ranges.lengths(node, report)
        if report.problems or not found:
            raise UsageError(f"--load {name}: {report.problems[0].message}")
        given[name] = found
    return Inputs(**given)  # type: ignore[arg-type]


def _of_scenario(path: Path, spec: ModelSpec) -> Inputs:
    """The lengths of a sweep's scenario for this model."""
    try:
        scenarios = [each for each in read_sweep(path).scenarios if spec.name in each.models]
    except SpecError as error:
        raise SpecError(f"--load {error.file}", error.problems) from None
    if len(scenarios) != 1:
        raise UsageError(
            f"--load {path}: {len(scenarios)} scenarios name model '{spec.name}', expected one"
        )
    inputs = scenarios[0].inputs
    if inputs.file is not None or inputs.tensors or inputs.words:
        raise UsageError(f"--load {path}: tune takes the lengths of prompt and output alone")
    for name, lengths in (("prompt", inputs.prompt), ("output", inputs.output)):
        if len(lengths) > 1:
            raise UsageError(f"--load {path}: {name} is {len(lengths)} loads, expected one")
    return inputs


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

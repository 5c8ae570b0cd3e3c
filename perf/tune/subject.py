"""The model that is tuned: found by name, refused where it can't be, and how it is asked.

Reads models.yaml and the repository's cache of weights; starts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from generator.errors import ModelError, SpecError, UsageError
from generator.manifest import WEIGHTS_FOLDER
from generator.runtime_rules import repository_folder, snapshot_folder
from generator.spec import ModelSpec
from perf.sweep.ranges import Lengths
from perf.sweep.scenario import Scenario
from perf.sweep.scenario_file import read_sweep
from perf.tune.goal import Goal
from perf.tune.sent import Sent
from perf.tune.served_bench import INFER, STREAM

ENDPOINTS = {"infer": INFER, "generate-stream": STREAM}
_GENERATES = ("text-generation", "text2text-generation")
_ONE_SAMPLE = ("fill-mask", "pipeline")  # asked with their sample request, mask or media
_USUAL = {
    "text-generation": Sent(Lengths((64,)), Lengths((64,))),
    "text2text-generation": Sent(Lengths((32,)), Lengths((32,))),
    "feature-extraction": Sent(Lengths((64,))),
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
    if spec.canary is not None or spec.shadow is not None:
        what = "a canary" if spec.canary is not None else "a shadow"
        raise ModelError(
            f"model '{name}' shares its requests with others ({what}): tune an entry that has "
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


def sent_to(spec: ModelSpec, load: str | None) -> Sent:
    """What ``--load`` says, or what is usual for the task. Raises UsageError, SpecError."""
    if load is None:
        return _USUAL.get(spec.task, Sent())
    found = _of_scenario(Path(load), spec) if load.endswith((".yaml", ".yml")) else Sent.parse(load)
    if found.output is not None and spec.task not in _GENERATES:
        raise UsageError(f"--load output: model '{spec.name}' ({spec.task}) generates no text")
    if found.prompt is not None and spec.task in _ONE_SAMPLE:
        raise UsageError(
            f"--load prompt: model '{spec.name}' ({spec.task}) is asked with a sample request"
        )
    return found


def _of_scenario(path: Path, spec: ModelSpec) -> Sent:
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
    _refuse_unknown(path, scenarios[0])
    return Sent(*(_single(path, name, getattr(inputs, name)) for name in ("prompt", "output")))


def _refuse_unknown(path: Path, scenario: Scenario) -> None:
    inputs = scenario.inputs
    if inputs.file is not None or inputs.tensors or inputs.words:
        raise UsageError(f"--load {path}: tune takes the lengths of prompt and output alone")


def _single(path: Path, name: str, lengths: Sequence[Lengths]) -> Lengths | None:
    if len(lengths) > 1:
        raise UsageError(f"--load {path}: {name} is {len(lengths)} loads, expected one")
    return lengths[0] if lengths else None


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

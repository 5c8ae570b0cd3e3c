"""The axis "models in the YAML": what each verb takes for a models.yaml of n models.

Every verb is a process of its own, as a user runs it. ``apply --dry-run`` plans against a server
that answers as tritonserver does and has none of the models, or all of them (stand_in.py).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from generator.server.admin_key import VARIABLE
from perf.growth.axes.axis import Axis, Chart, Cost, Measure, Place, Step, doubled
from perf.growth.axes.cli_process import run_cli
from perf.growth.axes.stand_in import stand_in

TARGETS = (
    "validate",
    "generate",
    "generate, no change",
    "diff",
    "apply, all are new",
    "apply, all are loaded",
    "prune",
)
_WRITING = ("generate", "prune")
_READING = tuple(target for target in TARGETS if target not in _WRITING)
_FIGURES = {"Time": "wall_s", "Processor time": "cpu_s", "Peak memory": "peak_memory_mib"}
_GENERATOR = """\
    task: text-generation
    revision: main
    dtype: bfloat16
    max_batch_size: 8
    options: {max_num_seqs: 16, max_model_len: 1024}
"""
_ENCODER = """\
    task: feature-extraction
    max_batch_size: 32
    dynamic_batching: {max_queue_delay_microseconds: 500}
    options: {pooling: mean}
"""
_CLASSIFIER = """\
    task: text-classification
    max_batch_size: 32
    instance_group: [{kind: KIND_GPU, gpus: [0]}]
"""
_KINDS = (_GENERATOR, _ENCODER, _GENERATOR, _CLASSIFIER)
_ANY_KEY = "x" * 32
_ANOTHER = "models:\n  - {name: another, task: text-generation, model: example/another}\n"


def models_yaml(num_models: int) -> str:
    """Half of them stream, a quarter are embeddings, a quarter classifiers."""
    entries = (
        f"  - name: model-{i:04d}\n    model: example/model-{i}\n{_KINDS[i % len(_KINDS)]}"
        for i in range(num_models)
    )
    return "models:\n" + "".join(entries)


@contextlib.contextmanager
def session(place: Place) -> Iterator[Measure]:
    """Needs nothing that points share."""

    def measure(step: Step) -> Iterator[Cost]:
        with tempfile.TemporaryDirectory(dir=place.folder) as folder:
            yield from _costs(Path(folder), place, step.value)
            place.say("clearing away")

    yield measure


def _costs(folder: Path, place: Place, num_models: int) -> Iterator[Cost]:
    """Of every verb, one after the other on one repository, as over a repository's life."""
    config, repository = folder / "models.yaml", folder / "repository"

    def cost(target: str, says: str, *more: str) -> Cost:
        place.say(target)
        verb = target.partition(",")[0]
        command = [verb, *more, "--config", str(config), "--repository", str(repository)]
        taken = run_cli(command, says, {VARIABLE: _ANY_KEY})
        return Cost(target, taken, taken["wall_s"])

    config.write_text(models_yaml(num_models), encoding="utf-8")
    yield cost("validate", "no mistakes")
    yield cost("generate", " 0 identical")
    yield cost("generate, no change", " 0 written")
    yield cost("diff", " identical")
    for target, says in (
        ("apply, all are new", "add "),
        ("apply, all are loaded", "nothing to do"),
    ):
        with stand_in(repository, loaded="loaded" in target) as port:
            yield cost(target, says, "--dry-run", "--url", f"127.0.0.1:{port}")
    config.write_text(_ANOTHER, encoding="utf-8")
    yield cost("prune", "remove ")


AXIS = Axis(
    name="models-in-yaml",
    title="Models in the YAML",
    unit="models",
    points=doubled(1, 1000),
    quick_points=(1, 10, 100),
    highest=10_000,
    targets=TARGETS,
    charts=tuple(
        Chart(f"{title} of what {does}", (figure,), targets)
        for title, figure in _FIGURES.items()
        for does, targets in (("reads", _READING), ("writes", _WRITING))
    ),
    session=session,
    note="Each verb is a process of its own, Python's start included. Half of the models stream "
    "(two folders each), a quarter are embeddings, a quarter classifiers. apply plans (--dry-run) "
    "against a server that has none of the models, or all of them.",
    memory_gib=lambda value: 0.2 + value / 2000,
)

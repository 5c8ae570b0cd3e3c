"""What one of Triton's models holds of a served one: all of it, or one step of an ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hf_runtime.devices.device import Placement
from hf_runtime.errors import LoadError
from hf_runtime.request.tensors import RequestFields
from hf_runtime.weights.loading import load_config, load_weightless
from hf_runtime.weights.model_files import model_files
from hf_runtime.weights.served_model import ServedModel

from ..engine.metrics import EncoderMetrics
from ..engine.work import Work
from ..loading import auto_class_of, load_encoder, make_tokenization
from ..options import EncoderOptions
from ..task import EncoderTask, Prepared, TaskSetup
from .steps import PostprocessingStep, TokenizerStep, model_step


class Preparing(Protocol):
    """What reads a request: a task, or a step of one."""

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """See EncoderTask."""


class Engine(Protocol):
    """What computes."""

    metrics: EncoderMetrics

    @property
    def is_healthy(self) -> bool:
        """Whether it takes work."""

    def check_running(self) -> None:
        """Raises OverloadedError where it takes none."""

    def submit(self, work: Work) -> None:
        """Queues work; raises OverloadedError."""

    def stop(self) -> None:
        """Ends it."""


class NoEngine:
    """Where a step computes nothing: all is done when a request is read."""

    is_healthy = True

    def __init__(self) -> None:
        self.metrics = EncoderMetrics()

    def check_running(self) -> None:
        """It never ends."""

    def submit(self, work: Work) -> None:
        """Never called."""
        raise NotImplementedError

    def stop(self) -> None:
        """There is nothing to stop."""


@dataclass(frozen=True)
class LoadedPart:
    """What serves, and a line that says what it is."""

    engine: Engine
    task: Preparing
    description: str


def load_part(
    served: ServedModel,
    options: EncoderOptions,
    task_class: type[EncoderTask],
    placement: Placement,
    num_threads: int,
) -> LoadedPart:
    """Loads what ``served.role`` says.

    Raises:
        LoadError: with the one line that the operator reads.
    """
    if served.role in ("whole", "model"):
        whole = served.role == "whole"
        kind = task_class if whole else model_step(task_class)
        loaded = load_encoder(served, options, kind, placement, num_threads)
        return LoadedPart(loaded.engine, loaded.task, loaded.description)
    description = f"{served.source}, {served.role}"
    task = weightless_task(served, options, task_class)
    if served.role == "tokenizer":
        return LoadedPart(NoEngine(), TokenizerStep(task, served.pad_to_multiple_of), description)
    if served.role == "postprocessing":
        return LoadedPart(NoEngine(), PostprocessingStep(task), description)
    raise LoadError(f"model.json: role {served.role} is none of an encoder's")


def weightless_task(
    served: ServedModel, options: EncoderOptions, task_class: type[EncoderTask]
) -> EncoderTask:
    """The task with its tokenizer, but without the model's weights."""
    files = model_files(served)
    config = load_config(served, files)
    model = load_weightless(served, auto_class_of(task_class, config), config)
    tokenization = make_tokenization(served, options, files, model)
    batched = served.max_batch_size > 0
    return task_class(TaskSetup(options, model.config, files, tokenization, batched))

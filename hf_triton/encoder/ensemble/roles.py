"""The role of one Triton model: the whole served model, or one step of an ensemble."""

from __future__ import annotations

from typing import Any

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.loading import load_on_meta_device, within_files
from hf_triton.runtime.weights.served_model import ServedModel

from ..engine.engine import EncoderEngine
from ..loading import LoadedEncoder, auto_class_of, load_encoder, make_task, read_files
from ..options import EncoderOptions
from ..task import EncoderTask
from .steps import PostprocessingStep, TokenizerStep, model_step


def load_role(
    served: ServedModel,
    options: EncoderOptions,
    task_class: type[EncoderTask],
    placement: Placement,
    num_threads: int,
) -> LoadedEncoder:
    """Loads what ``served.role`` says.

    Raises:
        LoadError: with the one line that the operator reads.
    """
    if served.role in ("whole", "model"):
        whole = served.role == "whole"
        kind = task_class if whole else model_step(task_class)
        return load_encoder(served, options, kind, placement, num_threads)
    description = f"{served.source}, {served.role}"
    task = weightless_task(served, options, task_class)
    if served.role == "tokenizer":
        step = TokenizerStep(task, served.pad_to_multiple_of)
        return LoadedEncoder(no_engine(), step, description, task.setup.tokenization.tokenizer)
    if served.role == "postprocessing":
        return LoadedEncoder(no_engine(), PostprocessingStep(task), description)
    raise LoadError(f"model.json: role {served.role} is none of an encoder's")


def no_engine() -> EncoderEngine:
    """Never started, for a step that computes nothing: all is done when a request is read."""

    def nothing(*_: Any) -> Any:
        raise NotImplementedError

    return EncoderEngine(nothing, nothing, max_num_batched_tokens=1, num_threads=1)


def weightless_task(
    served: ServedModel, options: EncoderOptions, task_class: type[EncoderTask]
) -> EncoderTask:
    """The task with its tokenizer, but without the model's weights."""
    saved, config = read_files(served, task_class)
    with within_files(served, saved.folder):
        model = load_on_meta_device(served, auto_class_of(task_class, config), config)
    return make_task(served, options, task_class, saved, model)

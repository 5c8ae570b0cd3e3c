"""Turns a TritonModel into the files of its folder: {relative path: bytes}. In a template every
string passes a filter that makes it safe where it stands; printing one that passed none is refused.
Models alike but for their names are rendered once, as a form that leaves the name open. The code
that runs is the installed library's.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from generator.errors import TemplateError
from generator.render import model_config
from generator.render.manifest import CONFIG_FILE, MODEL_FILE, parameter_line, with_digest
from generator.render.model_data import NATIVE_FILES, data_files, fingerprint
from generator.render.strict_jinja import Filter, rendered, strict_environment
from generator.spec.model_spec import DynamicBatching, Ensemble, InstanceGroup, VersionPolicy
from generator.spec.python_env import PythonEnv
from generator.spec.task_folders import (
    CONFIG_TEMPLATE,
    ENSEMBLE_FOLDER,
    FRONT_FOLDER,
    MODEL_TEMPLATE,
    VERSION_FOLDER,
    Task,
    library_version,
)
from generator.spec.triton_models import LOCAL_FILES_PARAMETER, TritonModel
from hf_triton.text_generation.sequence.request_options import OPTIONS
from hf_triton.version import LIBRARY_PARAMETER

HOOKS_FILE = f"{VERSION_FOLDER}/hooks.py"
# The model's name in a form; every filter prints it as it is.
_NAME = "<<name>>"
# The output's name in models that hf-triton exports (hf_triton/encoder/onnx/export.py).
_COMPUTED = "output"
# By a task's OUTPUT, its sizes for each row.
_SIZES = {"hidden": (-1, -1), "tokens": (-1, -1), "sequences": (-1,)}


class Tensor(NamedTuple):
    """A tensor in a config.pbtxt; ``dims`` without the batch dimension that Triton adds."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False


def _declared(tensors: Iterable[Any]) -> list[Tensor]:
    return [
        Tensor(
            name=one.name,
            data_type=model_config.type_word(one),
            dims=tuple(one.dims),
            optional=getattr(one, "optional", False),
        )
        for one in tensors
    ]


def _ensemble_tensors(outer: str, ensemble: Ensemble, output: str) -> dict[str, object]:
    """The tensors of an ensemble, made of those that its task has in one model, whose config is
    ``outer``, and those between its steps, without their rows: ``tokens``, and what is
    ``computed``, by the task's OUTPUT.

    The tokenizer and the postprocessing step take a client's batch as it is, with its batch
    dimension as one of their own: a row can be several rows of tokens (a long context's windows, a
    text with each of its labels), and Triton would hold both to the same number of rows. Only the
    model step has a batch size.
    """
    single: Any = model_config.parse(outer)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] * ensemble.token_type_ids)]
    return {
        "inputs": _declared(single.input),
        "outputs": _declared(single.output),
        "tokens": [Tensor(name, "TYPE_INT64", (-1,)) for name in names],
        "computed": Tensor(_COMPUTED, "TYPE_FP32", _SIZES[output]),
    }


class _EntryOfForm(NamedTuple):
    max_batch_size: int
    dynamic_batching: DynamicBatching | None
    instance_groups: tuple[InstanceGroup, ...]
    version_policy: VersionPolicy | None
    python_env: PythonEnv | None
    ensemble: Ensemble | None
    pipeline: object
    name: str

    @property
    def options(self) -> dict[str, object]:
        return {"pipeline": self.pipeline}


_read = operator.attrgetter(*_EntryOfForm._fields[:-2])


def render(model: TritonModel, task: Task, repository: Path) -> dict[str, bytes]:
    (config, module), parameters = _texts(model, task), model.parameters
    if model.runs_python and task.library:  # which code of the library the folder is for
        version = library_version((FRONT_FOLDER,)) if model.role == "front" else task.library
        parameters[LIBRARY_PARAMETER] = version
    if model.role not in ("front", "ensemble") and (found := fingerprint(model.spec)):
        # By which a local folder that was changed in place is seen.
        parameters[LOCAL_FILES_PARAMETER] = found
    lines = (parameter_line(name, quote(value)) for name, value in parameters.items())
    files = {CONFIG_FILE: "".join([config, *lines]).encode(), **data_files(model, repository)}
    if model.runs_python:
        files[MODEL_FILE] = module
        if model.role != "front" and model.spec.hooks is not None:
            files[HOOKS_FILE] = model.spec.hooks.content
    return dict(sorted(with_digest(files).items()))


def render_config(model: TritonModel, task: Task) -> str:
    """A config.pbtxt but for its parameters. Raises TemplateError unless Triton would load it."""
    return _texts(model, task)[0]


def _texts(model: TritonModel, task: Task) -> tuple[str, bytes]:
    """A config.pbtxt but for its parameters, and model.py."""
    try:
        config, module = form_of(_alike(model), task)
    except TemplateError as error:
        raise TemplateError(str(error).replace(_NAME, model.spec.name)) from None
    return config.replace(_NAME, quote(model.spec.name)[1:-1]), module


@functools.lru_cache(maxsize=4096)
def form_of(model: TritonModel, task: Task) -> tuple[str, bytes]:
    """The texts of all models that are ``_alike``; no model.py where no Python of ours runs."""
    config, module = _config(model, task), ""
    model_config.check(config, model.name)
    if model.runs_python:
        folder = FRONT_FOLDER if model.role == "front" else task.folder.name
        module = _rendered(task, f"{folder}/{MODEL_TEMPLATE}", model)
    return config, module.encode()


def _config(model: TritonModel, task: Task) -> str:
    if model.role != "ensemble" and not model.is_step:
        return _rendered(task, f"{task.folder.name}/{CONFIG_TEMPLATE}", model)
    outer = _config(TritonModel(_NAME, "whole", model.spec), task)
    tensors = _ensemble_tensors(outer, model.spec.ensemble or Ensemble(), task.output)
    return _rendered(task, f"{ENSEMBLE_FOLDER}/{model.role}.pbtxt.j2", model, tensors=tensors)


def _rendered(task: Task, name: str, model: TritonModel, **values: object) -> str:
    return rendered(template_environment(task.folder.parent), name, model=model, **values)


def _alike(model: TritonModel) -> TritonModel:
    """A model as templates see it: equal for all that are alike."""
    spec, suffix = model.spec, model.name[len(model.spec.name) :]
    entry: Any = _EntryOfForm._make((*_read(spec), spec.options.get("pipeline"), _NAME))
    return TritonModel(_NAME + suffix, model.role, entry)


@functools.lru_cache(maxsize=4096)
def quote(text: str) -> Markup:
    """``text`` as a string of protobuf's text format: ASCII, everything else in octal escapes."""

    def escape(byte: int) -> str:
        plain = 0x20 <= byte < 0x7F and byte not in b'"\\'
        return chr(byte) if plain else f"\\{byte:03o}"

    return Markup(f'"{"".join(map(escape, text.encode()))}"')  # noqa: S704


@functools.lru_cache(maxsize=4096)
def word(text: str) -> Markup:
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", text):
        raise TemplateError(f"{text!r} is not a value of this enum")
    return Markup(text)  # noqa: S704


def numbers(values: Iterable[int]) -> Markup:
    return Markup(", ".join(str(int(value)) for value in values))  # noqa: S704


def tensor(name: str, data_type: str, dims: Iterable[int], *, optional: bool = False) -> Markup:
    """An input or output in a config.pbtxt."""
    text = f"  {{ name: {quote(name)}, data_type: {word(data_type)}, dims: [ {numbers(dims)} ]"
    return Markup(f"{text}{', optional: true' * optional} }}")  # noqa: S704, of parts that are safe


@functools.lru_cache
def template_environment(folder: Path) -> jinja2.Environment:
    filters: dict[str, Filter] = {"quote": quote, "word": word, "numbers": numbers}
    environment = strict_environment(folder, filters, "without quote, word or numbers")
    environment.globals.update(tensor=tensor, options=OPTIONS, native_files=NATIVE_FILES)
    return environment

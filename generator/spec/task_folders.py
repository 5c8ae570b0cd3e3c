"""The task folders of model_templates/: which there are, their options, and the files that run.

A task is a folder that holds a ``config.pbtxt.j2``; its name is the Hub's pipeline tag with ``-``
written ``_``. Knows nothing of models.yaml, and of what a task does only its options' dataclass.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from generator.errors import TemplateError
from generator.spec.reachable import reachable
from generator.yaml_file import schema

CONFIG_TEMPLATE = "config.pbtxt.j2"
SHARED_PACKAGE = "hf_runtime"
FRONT_FOLDER = "front"
ENSEMBLE_FOLDER = "ensemble"
VLLM_BACKEND_FOLDER = "vllm_backend"
VERSION_FOLDER = "1"
# As hf_encoder/task.py has them: of each token's last hidden state, of each token, of each row.
OUTPUTS = ("hidden", "tokens", "sequences")
_KINDS = (bool, int, float, str, dict)


@dataclass(frozen=True)
class Option:
    """One key of a task's ``options:``, as the task's dataclass declares it."""

    name: str
    kind: type
    choices: tuple[object, ...]
    nullable: bool
    default: object
    help: str
    unit: str | None
    minimum: float | None
    maximum: float | None
    exclusive_min: float | None
    engines: tuple[str, ...] = ()  # that alone know it; none: all do

    @cached_property
    def check(self) -> schema.Check:
        """What models.yaml may say for it."""
        inner = self._inner_check()
        return schema.nullable(inner) if self.nullable else inner

    def is_for(self, engine: object) -> bool:
        """Whether that engine, where there are several, knows the option."""
        return not self.engines or engine in ("auto", *self.engines)

    def _inner_check(self) -> schema.Check:
        if self.choices:
            return schema.choice(*self.choices)
        if self.kind is bool:
            return schema.boolean
        if self.kind is str:
            return schema.text("text", may_be_empty=True, allowed="\n\t")
        if self.kind is dict:
            return schema.plain_map
        if self.kind is float:
            return schema.number(self.minimum, self.maximum, self.exclusive_min, self.unit)
        exclusive = self.exclusive_min
        lowest = self.minimum if exclusive is None else math.floor(exclusive) + 1
        minimum = None if lowest is None else math.ceil(lowest)
        maximum = schema.INT32_MAX if self.maximum is None else math.floor(self.maximum)
        return schema.integer(minimum, maximum, self.unit)


@dataclass(frozen=True, eq=False)
class Task:
    """One task folder."""

    tag: str
    folder: Path

    @cached_property
    def options_class(self) -> type[Any]:
        """The dataclass ``Options`` of the folder's options.py."""
        found = getattr(self._options_module, "Options", None)
        if not isinstance(found, type) or not dataclasses.is_dataclass(found):
            raise TemplateError(f"{self.folder / 'options.py'}: needs a dataclass named Options")
        return found

    @cached_property
    def streams(self) -> bool:
        """Whether its engines can answer piece by piece: ``STREAMS`` of the folder's options.py."""
        return self._flag("STREAMS")

    @cached_property
    def has_adapters(self) -> bool:
        """Whether its engines serve LoRA adapters: ``ADAPTERS`` of the folder's options.py."""
        return self._flag("ADAPTERS")

    @cached_property
    def has_draft_model(self) -> bool:
        """Whether a draft model may draft for its models: ``DRAFT_MODEL`` of the folder's
        options.py.
        """
        return self._flag("DRAFT_MODEL")

    @cached_property
    def quantizes(self) -> bool:
        """Whether its models load with quantized weights: ``QUANTIZES`` of the folder's
        options.py.
        """
        return self._flag("QUANTIZES")

    @cached_property
    def is_deterministic(self) -> bool:
        """Whether the same request always gets the same answer, which then may be kept:
        ``DETERMINISTIC`` of the folder's options.py.
        """
        return self._flag("DETERMINISTIC")

    @cached_property
    def has_vllm_backend(self) -> bool:
        """Whether NVIDIA's vLLM backend answers requests of this task: ``VLLM_BACKEND`` of the
        folder's options.py.
        """
        return self._flag("VLLM_BACKEND")

    def _flag(self, name: str) -> bool:
        found = getattr(self._options_module, name, False)
        if not isinstance(found, bool):
            message = f"{name} is {found!r}, must be True or False"
            raise TemplateError(f"{self.folder / 'options.py'}: {message}")
        return found

    @cached_property
    def output(self) -> str | None:
        """What a model of this task answers where it is a step of an ensemble: ``OUTPUT`` of the
        folder's options.py. None where the task has no such steps.
        """
        found = getattr(self._options_module, "OUTPUT", None)
        if found is not None and found not in OUTPUTS:
            message = f"OUTPUT is {found!r}, must be one of {', '.join(OUTPUTS)}"
            raise TemplateError(f"{self.folder / 'options.py'}: {message}")
        return found

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """The packages that its model.py imports beside hf_runtime, each a folder of
        model_templates: ``PACKAGES`` of the folder's options.py.
        """
        found = getattr(self._options_module, "PACKAGES", ())
        for name in found:
            if not (self.folder.parent / name / "__init__.py").is_file():
                message = f"PACKAGES names {name!r}, which is no package of {self.folder.parent}"
                raise TemplateError(f"{self.folder / 'options.py'}: {message}")
        return tuple(found)

    @cached_property
    def _options_module(self) -> types.ModuleType:
        return _load_options(self.folder / "options.py")

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """The task's options by name, in the order of the dataclass."""
        hints = _type_hints(self.options_class, self.folder)
        fields = dataclasses.fields(self.options_class)
        return {field.name: _option(field, hints[field.name], self.folder) for field in fields}

    @cached_property
    def runtime_files(self) -> Mapping[str, bytes]:
        """What its model.py can reach, byte for byte: path in the model's folder -> content,
        sorted.
        """
        return _runtime_files(self.folder, self.packages)

    @cached_property
    def front_files(self) -> Mapping[str, bytes]:
        """The same of a front, which is the same for every task that streams."""
        folder = self.folder.parent / FRONT_FOLDER
        if not (folder / "model.py").is_file():
            raise TemplateError(f"{folder}: no model.py; {self.tag} streams and needs a front")
        return _runtime_files(folder)


def default_directory() -> Path:
    """model_templates/ beside the ``generator`` package."""
    return Path(__file__).resolve().parents[2] / "model_templates"


def find_tasks(directory: Path | None = None) -> dict[str, Task]:
    """Every task folder by its tag, sorted. Raises TemplateError where there is none."""
    directory = directory or default_directory()
    folders = sorted(path.parent for path in directory.glob(f"*/{CONFIG_TEMPLATE}"))
    if not folders:
        raise TemplateError(f"{directory}: no task folder with a {CONFIG_TEMPLATE}")
    tasks = (Task(folder.name.replace("_", "-"), folder) for folder in folders)
    return {task.tag: task for task in tasks}


def _runtime_files(folder: Path, packages: tuple[str, ...] = ()) -> dict[str, bytes]:
    places = {"": folder}
    for name in (SHARED_PACKAGE, *packages):
        places[f"{name}/"] = folder.parent / name
    sources = {
        f"{prefix}{path.relative_to(place).as_posix()}": path.read_bytes()
        for prefix, place in places.items()
        for path in place.rglob("*.py")
        if _is_source(path.relative_to(place))
    }
    return {f"{VERSION_FOLDER}/{path}": sources[path] for path in sorted(reachable(sources))}


def _is_source(path: Path) -> bool:
    return not any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def _load_options(path: Path) -> types.ModuleType:
    name = f"hf_triton_options.{path.parent.name}_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise TemplateError(f"{path}: no such file; a task folder needs its options")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their annotations up there
    try:
        with _importable(path.parent.parent):
            spec.loader.exec_module(module)
    except Exception as error:
        raise TemplateError(f"{path}: can't be loaded: {error}") from error
    return module


@contextlib.contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """Options may extend those of a shared package beside their task's folder."""
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))


def _type_hints(options_class: type[Any], folder: Path) -> dict[str, Any]:
    try:
        return get_type_hints(options_class)
    except (NameError, TypeError) as error:
        raise TemplateError(f"{folder / 'options.py'}: {error}") from error


def _option(field: dataclasses.Field[Any], hint: Any, folder: Path) -> Option:
    kind, choices, nullable = _kind(hint, f"{folder / 'options.py'}: {field.name}")
    if field.default is dataclasses.MISSING:
        raise TemplateError(f"{folder / 'options.py'}: {field.name}: an option needs a default")
    known = {"help", "unit", "min", "max", "exclusive_min", "engines"}
    if not field.metadata.get("help") or set(field.metadata) - known:
        keys = ", ".join(sorted(known))
        message = f"metadata needs help and only {keys}"
        raise TemplateError(f"{folder / 'options.py'}: {field.name}: {message}")
    return Option(
        name=field.name,
        kind=kind,
        choices=choices,
        nullable=nullable,
        default=field.default,
        help=field.metadata["help"],
        unit=field.metadata.get("unit"),
        minimum=field.metadata.get("min"),
        maximum=field.metadata.get("max"),
        exclusive_min=field.metadata.get("exclusive_min"),
        engines=tuple(field.metadata.get("engines", ())),
    )


def _kind(hint: Any, where: str) -> tuple[type, tuple[object, ...], bool]:
    """``int | None`` -> (int, (), True); ``Literal["a", "b"]`` -> (str, ("a", "b"), False)."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    inner = [member for member in members if member is not type(None)]
    nullable = len(inner) < len(members)
    if len(inner) == 1 and get_origin(inner[0]) is Literal:
        choices = get_args(inner[0])
        return type(choices[0]), choices, nullable
    found = [get_origin(member) or member for member in inner]
    if len(found) == 1 and found[0] in _KINDS:
        return found[0], (), nullable
    raise TemplateError(
        f"{where}: an option is int, float, bool, str, dict or Literal, or one of them | None"
    )

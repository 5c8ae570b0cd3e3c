"""The task folders of model_templates/, each with a ``config.pbtxt.j2``; a name is the Hub's
pipeline tag with ``-`` written ``_``. Options are declared in the package of the same name in
hf_triton.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import hf_triton
from generator.errors import TemplateError
from generator.yaml_file import keys
from hf_triton.version import VERSION

CONFIG_TEMPLATE = "config.pbtxt.j2"
MODEL_TEMPLATE = "model.py.j2"
FRONT_FOLDER = "front"
ENSEMBLE_FOLDER = "ensemble"
VERSION_FOLDER = "1"
_SHARED = ("runtime", "python_env", "tracing")  # the packages that all tasks share
_FOLDER = Path(str(hf_triton.__file__)).parent


@lru_cache
def library_version(packages: tuple[str, ...]) -> str:
    """The version for models that run these packages: ``0.1.0-1a2b3c4d5e6f``. Raises
    TemplateError.
    """
    digest = hashlib.sha256()
    for name in ("", *_SHARED, *sorted(packages)):
        digest.update(_digest(name))
    return f"{VERSION}-{digest.hexdigest()[:12]}"


@lru_cache
def _digest(package: str) -> bytes:
    """Over a package's modules, or over those of hf_triton itself."""
    digest = hashlib.sha256()
    folder = _FOLDER / package
    if not folder.is_dir():
        raise TemplateError(f"PACKAGES names {package!r}, which is no package of {_FOLDER}")
    for path in sorted(folder.rglob("*.py") if package else folder.glob("*.py")):
        digest.update(f"{path.relative_to(_FOLDER)}\0".encode() + path.read_bytes())
    return digest.digest()


@dataclass(frozen=True)
class Option:
    """An option that hf_triton/runtime/option.py declares, with its type taken apart."""

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
    engines: tuple[str, ...]  # those that have it; empty: all

    @cached_property
    def annotation(self) -> Any:
        checked: Any = Annotated[cast("Any", self.kind), self._check()]
        return checked | None if self.nullable else checked

    def is_for(self, engine: object) -> bool:
        return not self.engines or engine in ("auto", *self.engines)

    def _check(self) -> Any:
        if self.choices:
            return keys.one_of(*self.choices)
        if self.kind is bool:
            return keys.true_or_false
        if self.kind is str:
            return keys.Text("text", may_be_empty=True, allowed="\n\t")
        if self.kind is dict:
            return keys.As(keys.AnyMap)
        if self.kind is float:
            return keys.number(self.minimum, self.maximum, self.exclusive_min, self.unit)
        least = None if self.minimum is None else math.ceil(self.minimum)
        if self.exclusive_min is not None:
            least = math.floor(self.exclusive_min) + 1
        most = keys.INT32_MAX if self.maximum is None else math.floor(self.maximum)
        return keys.whole(least, most, self.unit)


def options_of(folder: Path) -> type[Any]:
    """What the task of this folder declares as its options."""
    found: type[Any] = importlib.import_module(f"hf_triton.{folder.name}.options").Options
    return found


def _constant(name: str, default: object = False) -> Any:
    """Reads a constant of a task's Options; ``default`` without one."""
    return property(lambda task: getattr(task.options_class, name, default))


@dataclass(frozen=True, eq=False)
class Task:
    tag: str
    folder: Path

    streams = _constant("STREAMS")  # whether its engines can answer piece by piece
    has_adapters = _constant("ADAPTERS")  # whether its engines serve LoRA adapters
    quantizes = _constant("QUANTIZES")  # whether its models load with quantized weights
    # True if the same request always gets the same answer, which may be cached then.
    is_deterministic = _constant("DETERMINISTIC")
    # Options that were removed, and what to use instead.
    gone = _constant("GONE", {})
    # "hidden", "tokens" or "sequences", where a model of this task can be a step of an ensemble.
    output = _constant("OUTPUT", None)
    # The packages of hf_triton that its own uses beside the shared one.
    packages = _constant("PACKAGES", ())

    @cached_property
    def options_class(self) -> type[Any]:
        return options_of(self.folder)

    @cached_property
    def library(self) -> str:
        """The version of the library for its models; empty for a task that is not the library's."""
        own = self.folder.name
        return library_version((own, *self.packages)) if (_FOLDER / own).is_dir() else ""

    @cached_property
    def options(self) -> Mapping[str, Option]:
        hints = get_type_hints(self.options_class)
        fields = dataclasses.fields(self.options_class)
        return {field.name: _option(field, hints[field.name]) for field in fields}

    @cached_property
    def option_keys(self) -> type[keys.Keys]:
        fields = [
            (one.name, one.annotation, keys.key(one.default, one.help))
            for one in self.options.values()
        ]
        own = {"expected": "a map of options", "gone": self.gone}
        return dataclasses.make_dataclass(
            "Options", fields, bases=(keys.Keys,), namespace=own, frozen=True
        )


def default_directory() -> Path:
    return Path(__file__).resolve().parents[2] / "model_templates"


def find_tasks() -> Mapping[str, Task]:
    """Every task folder by its tag, sorted. Raises TemplateError where there is none."""
    return _tasks_in(default_directory())


@lru_cache
def _tasks_in(directory: Path) -> Mapping[str, Task]:
    folders = sorted(path.parent for path in directory.glob(f"*/{CONFIG_TEMPLATE}"))
    if not folders:
        raise TemplateError(f"{directory}: no task folder with a {CONFIG_TEMPLATE}")
    tasks = (Task(folder.name.replace("_", "-"), folder) for folder in folders)
    return {task.tag: task for task in tasks}


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    """``int | None``: an int, nullable; ``Literal["a", "b"]``: a str of these choices."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    [inner] = (member for member in members if member is not type(None))
    choices = get_args(inner) if get_origin(inner) is Literal else ()
    kind = type(choices[0]) if choices else get_origin(inner) or inner
    is_nullable = len(members) > 1
    return Option(field.name, kind, choices, is_nullable, field.default, **field.metadata)

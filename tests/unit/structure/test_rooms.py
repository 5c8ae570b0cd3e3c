"""The shape of the tree: which folder may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIBRARY = ROOT / "hf_triton"
# From the ground up: a folder imports nothing of a later row. The longest name counts.
FLOORS = (
    ("hf_triton/version", "hf_triton/python_env"),
    ("hf_triton/tracing",),
    ("hf_triton/runtime",),
    ("hf_triton/text_generation/options",),
    ("hf_triton/text_generation/structured",),
    ("hf_triton/text_generation/sequence",),
    ("hf_triton/text_generation/media", "hf_triton/text_generation/lora"),
    ("hf_triton/text_generation/memory", "hf_triton/text_generation/request"),
    ("hf_triton/text_generation/engine",),
    ("hf_triton/text_generation/forward",),
    ("hf_triton/text_generation/sampling",),
    ("hf_triton/text_generation/engines",),
    ("hf_triton/text_generation", "hf_triton/encoder", "hf_triton/pipeline"),
    ("hf_triton",),  # the tasks
    ("generator/errors",),
    ("generator/flag_values",),
    ("generator/python_modules",),
    ("generator/yaml_file",),
    ("generator/spec",),
    ("generator/models_yaml",),
    ("generator/render",),
    ("generator/repository",),
    ("generator/fetch",),
    ("generator/deploy",),
    ("generator",),
    ("hf_triton/tritonserver",),
    ("hf_triton/ports",),
    ("hf_triton/ports/openai",),
    ("hf_triton/batches",),
    ("hf_triton/ports/openai/app", "hf_triton/ports/serving"),
    ("hf_triton/serving/python_env",),
    ("hf_triton/serving/apply",),
    ("hf_triton/serving",),
    ("hf_triton/cli/places",),
    ("hf_triton/cli/verbs",),
    ("hf_triton/cli",),
    ("perf",),
    ("perf/lab",),
)


def sources(root: Path) -> dict[str, Path]:
    """Every module below ``root`` by the name that imports it, packages without ``__init__``."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("")
        found[".".join(parts.parts).removesuffix(".__init__")] = path
    return found


MODULES = {**sources(ROOT / "generator"), **sources(LIBRARY), **sources(ROOT / "perf")}
PARENTS = {path.parent.parent for path in MODULES.values()}


@cache
def imported(name: str) -> tuple[str, ...]:
    """The modules of ours that a module imports, anywhere in it."""
    return tuple(_imported(name))


def _imported(name: str) -> Iterator[str]:
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield from (found for found in (inner, module) if found in MODULES)


def folder(name: str) -> str:
    """A module's folder; beside folders a module stands for itself: it puts them together."""
    path = MODULES[name]
    place = path.parent.relative_to(ROOT).as_posix()
    return f"{place}/{path.stem}" if path.parent in PARENTS else place


def imports_of_folders() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for name in MODULES:
        here = folder(name)
        found = {folder(other) for other in imported(name) if MODULES[other].name != "__init__.py"}
        graph.setdefault(here, set()).update(found - {here})
    return graph


def test_no_two_folders_import_each_other() -> None:
    try:
        TopologicalSorter(imports_of_folders()).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_folder_imports_one_above_it() -> None:
    named = {name: floor for floor, row in enumerate(FLOORS) for name in row}

    def floor_of(place: str) -> int:
        parts = place.split("/")
        prefixes = ("/".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next(named[prefix] for prefix in prefixes if prefix in named)

    wrong = [
        f"{here} imports {other}"
        for here, others in imports_of_folders().items()
        for other in others
        if floor_of(here) < floor_of(other) and other != "hf_triton/hooks"
    ]
    assert wrong == []


def test_no_two_modules_import_each_other() -> None:
    graph = {name: set(imported(name)) - {name} for name in MODULES}
    plain = {
        name: {other for other in others if MODULES[other].name != "__init__.py"}
        for name, others in graph.items()
    }
    try:
        TopologicalSorter(plain).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))

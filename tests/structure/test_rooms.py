"""The shape of the tree: which folder may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "hf_triton"
# From the ground up: a folder imports those before it, never those after it.
GENERATOR_FLOORS = (
    "errors",
    "flag_values",
    "python_modules",
    "yaml_file",
    "spec",
    "models_yaml",
    "render",
    "repository",
    "server",
    "proxy",
    "fetch",
    "python_env",
    "apply",
    "openai_api",
    "deploy",
    "supervision",
    "verbs",
    "cli",
)


def sources(root: Path) -> dict[str, Path]:
    """Every module below ``root`` by the name that imports it, packages without ``__init__``."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("")
        found[".".join(parts.parts).removesuffix(".__init__")] = path
    return found


MODULES = {**sources(ROOT / "generator"), **sources(LIBRARY), **sources(ROOT / "perf")}
PARENTS = {path.parent.parent for path in MODULES.values() if path.name == "__init__.py"}


def imported(name: str) -> Iterator[str]:
    """The modules of ours that a module imports, anywhere in it."""
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


def test_no_folder_of_the_generator_imports_one_above_it() -> None:
    floors = {f"generator/{name}": floor for floor, name in enumerate(GENERATOR_FLOORS)}

    def floor_of(place: str) -> int:
        return floors.get("/".join(place.split("/")[:2]), len(floors))

    wrong = [
        f"{here} imports {other}"
        for here, others in imports_of_folders().items()
        for other in others
        if here.startswith("generator/") and other.startswith("generator/")
        if floor_of(here) < floor_of(other)
    ]
    assert wrong == []


def test_no_folder_of_the_library_imports_one_above_it() -> None:
    names = (("version", "python_env"), ("runtime",), ("encoder", "text_generation", "pipeline"))
    floors = {f"hf_triton/{name}": floor for floor, row in enumerate(names) for name in row}

    def floor_of(place: str) -> int:
        return floors.get("/".join(place.split("/")[:2]), len(names))

    wrong = [
        f"{here} imports {other}"
        for here, others in imports_of_folders().items()
        for other in others
        if here.startswith("hf_triton/") and other.startswith("hf_triton/")
        if floor_of(here) < floor_of(other) and other != "hf_triton/hooks"
    ]
    assert wrong == []


def test_generator_and_library_import_nothing_of_perf() -> None:
    wrong = [
        f"{name} imports {other}"
        for name in MODULES
        if not name.startswith("perf")
        for other in imported(name)
        if other.startswith("perf")
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

"""``python_env:`` in models.yaml: requirements files, or the folder of an environment.

Looks at files, runs nothing.
"""

# os.path rather than pathlib: it never raises, whatever stands there.
# ruff: noqa: PTH110, PTH111, PTH112, PTH118

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from generator.models_yaml.features.requirements_file import Requirements
from generator.spec.model_spec import PythonEnv
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Report, show

_MAX_PROBLEMS = 3  # of a file that is none there may be thousands
_FILE = "a requirements file, or the folder of a Python environment"
_EXPECTED = f"{_FILE}, or a map with requirements, no_deps, system_site_packages"
_KEYS = {
    "requirements": schema.text("a requirements file"),
    "no_deps": schema.text("a requirements file, installed without what its packages ask for"),
    "system_site_packages": schema.boolean,
}


def check(node: Node, report: Report) -> Node | None:
    """The key's form; the files that it names are looked at once a model takes it."""
    if node.value is None:
        return None
    if isinstance(node.value, dict):
        schema.mapping(_KEYS, _EXPECTED)(node, report)
        if node.get("requirements") is None and node.get("no_deps") is None:
            report.add(node, "missing key 'requirements': the file with what is to be installed")
    elif not isinstance(node.value, str) or not node.value:
        report.expected(node, _EXPECTED)
    else:
        schema.text(_EXPECTED)(node, report)
    return node


def find_python_env(node: Node, base: Path, report: Report) -> PythonEnv | None:
    """The environment that the key asks for, paths relative to ``base``; reports every mistake."""
    before = len(report.problems)
    if isinstance(node.value, dict):
        found = _from_map(node, base, report)
    elif isinstance(node.value, str):
        found = _from_text(node, base, report)
    else:
        found = None
    return found if len(report.problems) == before else None


def _from_text(node: Node, base: Path, report: Report) -> PythonEnv | None:
    written = str(node.value)
    path = _path(written, base)
    if not os.path.isdir(path):
        return _of_requirements(base, report, requirements=node)
    if not os.path.lexists(path / "bin" / "python"):
        reason = f"{path} is no Python environment: it has no bin/python"
        report.add(node, f"got {show(node)}, but {reason}, expected {_FILE}")
        return None
    return PythonEnv(written, folder=path)


def _from_map(node: Node, base: Path, report: Report) -> PythonEnv | None:
    below = node.get("system_site_packages")
    return _of_requirements(
        base,
        report,
        requirements=node.get("requirements"),
        no_deps=node.get("no_deps"),
        below=below is not None and below.value is True,
    )


def _of_requirements(
    base: Path,
    report: Report,
    *,
    requirements: Node | None,
    no_deps: Node | None = None,
    below: bool = False,
) -> PythonEnv | None:
    parts = [_read(node, base, report) for node in (requirements, no_deps) if node is not None]
    found = [part for part in parts if part is not None]
    if not parts or len(found) < len(parts):
        return None
    passes = [bool(node) for node in (requirements, no_deps)]
    content = [f"{passes} {below}", *(line for part in found for line in part.content)]
    first = _path(str(requirements.value), base) if requirements else None
    second = _path(str(no_deps.value), base) if no_deps else None
    names = [str(node.value) for node in (requirements, no_deps) if node is not None]
    return PythonEnv(
        written=" and ".join(names),
        requirements=first,
        no_deps=second,
        system_site_packages=below,
        digest=hashlib.sha256("\n".join(content).encode()).hexdigest(),
        files=tuple(dict.fromkeys(file for part in found for file in part.files)),
    )


def _read(node: Node, base: Path, report: Report) -> Requirements | None:
    if not isinstance(node.value, str):
        return None  # told of already
    path = _path(node.value, base)
    if not os.path.exists(path):
        report.add(node, f"got {show(node)}, but {path} is no such file, expected {_FILE}")
        return None
    found = Requirements.read(path)
    for problem in found.problems[:_MAX_PROBLEMS]:
        report.add(node, problem)
    return None if found.problems else found


def _path(written: str, base: Path) -> Path:
    return Path(os.path.normpath(os.path.join(base, os.path.expanduser(written))))

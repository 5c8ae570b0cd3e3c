"""Builds the environments of several models, each once; one that fails does not stop the others."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from generator.spec.model_spec import ModelSpec
from generator.spec.python_env import PythonEnv
from generator.spec.runtime_rules import BrokenEnvironmentError, is_built, look_inside
from generator.spec.task_folders import Task
from hf_triton.serving.python_env.building import BuildError, ensure, folder_of
from hf_triton.tritonserver import binary

# What every task's model.py imports; a task's engines may need more, which a load then names.
_PACKAGES = ("torch", "transformers")


def ensure_environments(specs: Iterable[ModelSpec], tasks: Mapping[str, Task]) -> dict[str, str]:
    """Builds what is not there yet; models that can't have their environment, each with the reason.

    Progress goes to stderr.
    """
    failures: dict[str, str] = {}
    for env, users in _users(specs).items():
        try:
            _ensure(env, [spec.name for spec in users])
        except BuildError as error:
            failures.update({spec.name: f"python_env: {error}" for spec in users})
            continue
        for spec in users:
            missing = _missing_packages(env, tasks[spec.task])
            if missing:
                failures[spec.name] = f"python_env: {missing}"
    return failures


def preview(specs: Iterable[ModelSpec]) -> Iterator[str]:
    """One line on each environment."""
    for env, users in _users(specs).items():
        folder = folder_of(env)
        state = "is there" if env.folder or is_built(folder) else "to be built"
        names = ", ".join(spec.name for spec in users)
        yield f"{names}: environment of {env.written}: {state}, {folder}"


def _users(specs: Iterable[ModelSpec]) -> dict[PythonEnv, list[ModelSpec]]:
    """The models of each environment, by the first of those that say the same."""
    found: dict[Path, tuple[PythonEnv, list[ModelSpec]]] = {}
    for spec in specs:
        if spec.python_env is not None:
            place = folder_of(spec.python_env)
            found.setdefault(place, (spec.python_env, []))[1].append(spec)
    return dict(found.values())


def _ensure(env: PythonEnv, names: list[str]) -> None:
    progress = _BuildProgress(f"{', '.join(names)}: environment of {env.written}")
    began = time.monotonic()
    try:
        built = ensure(env, binary.numpy_below(), progress.show, progress.busy)
    finally:
        progress.end()
    if built:
        seconds = time.monotonic() - began
        _say(f"{progress.title}: built in {seconds:.0f} s, {folder_of(env)}")


def _missing_packages(env: PythonEnv, task: Task) -> str:
    """What the environment has not and the task needs; empty where there is nothing."""
    if not task.library:
        return ""
    try:
        versions = look_inside(folder_of(env), *_PACKAGES).versions
    except BrokenEnvironmentError as error:
        return str(error)
    missing = [name for name in _PACKAGES if versions[name] is None]
    if not missing:
        return ""
    hint = "" if env.folder else ", or say system_site_packages: true to take the server's"
    return f"{env.written}: lacks {' and '.join(missing)}, which {task.tag} needs: add that{hint}"


class _BuildProgress:
    """What pip is at: one line on a terminal, elsewhere a line for what takes long."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._on_terminal = sys.stderr.isatty()
        self._begun = False

    def show(self, line: str) -> None:
        if not self._begun:
            self._begun = True
            _say(f"{self.title}: building")
        if self._on_terminal:
            print(f"\r\033[K  {line}", end="", file=sys.stderr, flush=True)
        elif line.startswith("Installing") or "MB)" in line or "GB)" in line:
            _say(f"{self.title}: {line}")

    def busy(self, folder: Path) -> None:
        _say(f"{self.title}: another hf-triton is building it ({folder}); waiting for that one")

    def end(self) -> None:
        if self._on_terminal and self._begun:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _say(line: str) -> None:
    print(f"hf-triton: {line}", file=sys.stderr, flush=True)

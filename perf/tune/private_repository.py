"""A repository of one model beside the user's, for trials: generated from the same entry of
models.yaml with other settings. The user's files are only read; the weights that were fetched for
the model are used where they lie.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generator.models_yaml.models_lock import lock_path
from generator.models_yaml.reading import load
from generator.render.manifest import WEIGHTS_FOLDER
from generator.spec.model_spec import ModelSpec, PythonEnv
from generator.spec.task_folders import Task
from hf_triton.cli.verbs.generate import generate
from perf.tune.space import Settings, entry_with, plain

_LARGEST_COPY = 2**20  # bytes; what is larger in a cache of weights is linked


class PrivateRepository:
    """``folder`` is temporary; ``config`` and ``repository`` are the user's."""

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        tasks: Mapping[str, Task],
        config: Path,
        repository: Path,
    ) -> None:
        self.path = folder / "model_repository"
        self.name = spec.name
        self._tasks = dict(tasks)
        self._config = folder / "models.yaml"
        self._entry = _entry(spec)
        lock = lock_path(config)
        if lock.is_file():
            shutil.copyfile(lock, lock_path(self._config))
        _share_weights(repository / spec.name / WEIGHTS_FOLDER, self.path / spec.name)

    def spec(self, settings: Settings) -> ModelSpec:
        """The model with these settings. Raises SpecError where models.yaml could not say so."""
        self._write_config(settings)
        return load(self._config, self._tasks)[0]

    def generate(self, settings: Settings) -> None:
        """Makes the repository that of these settings. Raises GeneratorError."""
        self._write_config(settings)
        generate(self._config, self.path, force=True)

    def _write_config(self, settings: Settings) -> None:
        document = {"models": [entry_with(self._entry, settings)]}
        # JSON is YAML, and its texts mean the same to every reader.
        self._config.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def _entry(spec: ModelSpec) -> dict[str, Any]:
    """What models.yaml says of a model, defaults merged in, with paths that hold from anywhere."""
    entry = {key: plain(node) for key, node in spec.places.items()}
    if spec.source.folder is not None:
        entry["model"] = str(spec.source.folder)
    if spec.response_cache is not None:
        entry["response_cache"] = False  # the load repeats its requests: it would measure the cache
    if spec.hooks is not None:
        entry["hooks"] = str(spec.hooks.path.resolve())
    if spec.python_env is not None:
        entry["python_env"] = _environment(spec.python_env)
    for adapter, written in zip(spec.adapters, entry.get("adapters") or (), strict=True):
        if adapter.source.folder is not None:
            written["model"] = str(adapter.source.folder)
    return entry


def _environment(env: PythonEnv) -> str | dict[str, Any]:
    if env.folder is not None:
        return str(env.folder)
    files = {"requirements": env.requirements, "no_deps": env.no_deps}
    found: dict[str, Any] = {name: str(path) for name, path in files.items() if path is not None}
    return {**found, "system_site_packages": env.system_site_packages}


def _share_weights(cache: Path, model_folder: Path) -> None:
    """Links to what is large in a cache, copies of its records: trials add to neither."""
    if not cache.is_dir():
        return
    shared = model_folder / WEIGHTS_FOLDER
    shared.mkdir(parents=True, exist_ok=True)
    for path in cache.iterdir():
        target = shared / path.name
        if path.is_dir() or path.stat().st_size > _LARGEST_COPY:
            target.symlink_to(path.resolve())
        else:
            shutil.copyfile(path, target)

"""models.lock, beside models.yaml: each Hub model's commit, and its files with their hashes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

from generator.errors import SpecError
from generator.spec.model_spec import LockedSnapshot, ModelSpec
from generator.yaml_file import keys, nodes
from generator.yaml_file.keys import Keys, mapped, one_of
from generator.yaml_file.nodes import Report
from hf_triton.runtime.weights.hub_files import (
    NotServableError,
    choose_adapter_files,
    choose_gguf_file,
    choose_model_files,
)

DEFAULT_REVISION = "main"
_VERSION = 1
_MOST_BYTES = 4 * nodes.MOST_BYTES


@dataclass(frozen=True)
class _LockFile(Keys):
    expected: ClassVar[str] = "a map with 'models' and 'version'"
    needs: ClassVar[Mapping[str, str]] = {"version": f"{_VERSION}; another hf-triton wrote it"}
    version: Annotated[int, one_of(_VERSION, or_else=": another hf-triton wrote it")]
    models: Annotated[
        dict[str, Annotated[dict[str, LockedSnapshot], mapped("a map")]],
        mapped("a map"),
    ] = field(default_factory=dict)


Key: TypeAlias = tuple[str, str]
"""A Hub id, and a revision as models.yaml asks for it."""

Lock: TypeAlias = Mapping[Key, LockedSnapshot]


def lock_path(config: Path) -> Path:
    return config.with_suffix(".lock")


def lock_key(spec: ModelSpec) -> Key:
    return spec.source.text, spec.revision or DEFAULT_REVISION


def read_lock(config: Path) -> Lock | None:
    """The lock beside ``config``, None where there is none. Raises SpecError for a damaged one."""
    path = lock_path(config)
    if not os.path.lexists(path):  # a link that leads nowhere is damage, not the lack of a lock
        return None
    report, found = Report(), None
    try:
        found = keys.read(_LockFile, nodes.read(path, most_bytes=_MOST_BYTES), report)
    except SpecError as error:
        report.problems += error.problems
    if report.problems:
        hint = "; restore an older one, or delete it and run hf-triton fetch to make a new one"
        told = (replace(problem, message=problem.message + hint) for problem in report.problems)
        raise SpecError(str(path), told)
    return {
        (repository, revision): snapshot
        for repository, revisions in (found.models if found else {}).items()
        for revision, snapshot in revisions.items()
    }


def to_bytes(lock: Lock) -> bytes:
    models: dict[str, dict[str, object]] = {}
    for (repository, revision), snapshot in lock.items():
        files = {path: dataclasses.asdict(file) for path, file in snapshot.files.items()}
        entry = {"commit": snapshot.commit, "files": files}
        models.setdefault(repository, {})[revision] = entry
    value = {"version": _VERSION, "models": models}
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def pin(specs: Iterable[ModelSpec], lock: Lock | None, config: Path) -> list[ModelSpec]:
    """Gives each Hub model what is locked for it, if there is a lock. Raises SpecError with every
    model that is not locked as models.yaml asks for it.
    """
    if lock is None:
        return list(specs)
    report = Report()
    pinned = []
    for spec in specs:
        parts = [
            part if part.source.is_local else _pinned(part, lock, config, report)
            for part in spec.parts
        ]
        own, *adapters = (_with_beside(part, parts) for part in parts)
        pinned.append(replace(parts[0], locked=own, locked_adapters=tuple(adapters)))
    if report.problems:
        raise SpecError(str(config), report.problems)
    return pinned


def _pinned(spec: ModelSpec, lock: Lock, config: Path, report: Report) -> ModelSpec:
    repository, revision = lock_key(spec)
    name, run = lock_path(config).name, "run hf-triton fetch"
    found = lock.get((repository, revision))
    if found is None:
        others = sorted(known for locked, known in lock if locked == repository)
        has = f" (it has {', '.join(others)})" if others else ""
        key = "revision" if others else "model"
        message = f"{repository} at {revision} is not in {name}{has}; {run} {spec.name}"
    elif is_commit(revision) and found.commit != revision:
        key = "revision"
        message = f"{name} has commit {found.commit} for it; {run} --update {spec.name}"
    else:
        try:  # of a shared snapshot, the files that this model may have
            files = {path: found.files[path] for path in chosen_files(spec, found.files)}
            return replace(spec, locked=LockedSnapshot(found.commit, files))
        except NotServableError as error:
            key = "allow_pickle" if spec.gguf_file is None else "gguf_file"
            message = f"by {name}, {spec.source.text} {error}; {run} {spec.name}"
    report.add(spec.places.get(key) or spec.places["model"], message)
    return spec


def _with_beside(part: ModelSpec, parts: Iterable[ModelSpec]) -> LockedSnapshot | None:
    """All that is locked of the folder that a model and its adapters share in the cache."""
    found = part.locked
    for one in parts:
        if found is not None and one.source == part.source:
            found = found.beside(one.locked)
    return found


def chosen_files(spec: ModelSpec, names: Iterable[str]) -> list[str]:
    """The files of its repository that a model or an adapter may have. Raises NotServableError."""
    if spec.gguf_file is not None:
        return choose_gguf_file(names, spec.gguf_file)
    return (choose_model_files if spec.adapter is None else choose_adapter_files)(
        names, spec.allow_pickle
    )


def is_commit(revision: str) -> bool:
    return len(revision) == 40 and not set(revision) - set("0123456789abcdef")

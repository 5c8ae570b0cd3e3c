"""models.lock: which commit of each Hub model is served, and its files with their hashes.

Lies beside models.yaml under the same name. Reads and writes it, and checks models.yaml against it;
knows no Hub and no cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from generator.errors import RepositoryError, SpecError
from generator.spec.model_spec import LockedSnapshot, ModelSpec
from generator.spec.runtime_rules import (
    LockedFile,
    NotServableError,
    choose_adapter_files,
    choose_gguf_file,
    choose_model_files,
    is_safe_path,
)
from generator.yaml_file import reading, schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Report

DEFAULT_REVISION = "main"
COMMIT_PATTERN = r"[0-9a-f]{40}"
_VERSION = 1
_MOST_BYTES = 4 * reading.MOST_BYTES
_SHA256_PATTERN = r"[0-9a-f]{64}"


Key: TypeAlias = tuple[str, str]
"""A Hub id, and a revision as models.yaml asks for it."""

Lock: TypeAlias = Mapping[Key, LockedSnapshot]


def lock_path(config: Path) -> Path:
    """The lock of a models.yaml."""
    return config.with_suffix(".lock")


def lock_key(spec: ModelSpec) -> Key:
    return spec.source.text, spec.revision or DEFAULT_REVISION


def read_lock(config: Path) -> Lock | None:
    """The lock beside ``config``, None where there is none. Raises SpecError for a damaged one."""
    path = lock_path(config)
    if not os.path.lexists(path):  # a link that leads nowhere is damage, not the lack of a lock
        return None
    report = Report()
    try:
        lock = _lock(reading.read(path, most_bytes=_MOST_BYTES), report)
    except SpecError as error:
        report.problems += error.problems
    if report.problems:
        hint = "; take back an older one, or delete it and run hf-triton fetch to write it anew"
        found = (replace(problem, message=problem.message + hint) for problem in report.problems)
        raise SpecError(str(path), found)
    return lock


def to_bytes(lock: Lock) -> bytes:
    """The file's content: sorted, the same for the same lock."""
    models: dict[str, dict[str, object]] = {}
    for (repository, revision), snapshot in lock.items():
        files = {path: dataclasses.asdict(file) for path, file in snapshot.files.items()}
        entry = {"commit": snapshot.commit, "files": files}
        models.setdefault(repository, {})[revision] = entry
    value = {"version": _VERSION, "models": models}
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def update(config: Path, named: Iterable[Key], fetched: Lock) -> None:
    """Puts what was fetched into the lock beside ``config``, and drops what is no longer ``named``.

    Raises:
        RepositoryError: it can't be written.
    """
    path = lock_path(config)
    with _locked(path):
        old = read_lock(config) or {}
        entries = {key: old[key] for key in named if key in old}
        for key, snapshot in fetched.items():
            before = entries.get(key)
            same = before is not None and before.commit == snapshot.commit
            files = {**before.files, **snapshot.files} if before and same else snapshot.files
            entries[key] = LockedSnapshot(snapshot.commit, files)
        content = to_bytes(entries)
        if (entries or path.exists()) and not (path.exists() and path.read_bytes() == content):
            _write(path, content)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other fetches from the lock meanwhile; without, where the folder has no locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _write(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.hf-triton-tmp")
    try:
        scratch.write_bytes(content)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise RepositoryError(f"{path}: can't be written: {error.strerror}") from None


def pin(specs: Iterable[ModelSpec], lock: Lock | None, config: Path) -> list[ModelSpec]:
    """The models, each Hub model with what is locked for it; as they are where there is no lock.

    Raises:
        SpecError: every Hub model that the lock does not have as models.yaml asks for it.
    """
    if lock is None:
        return list(specs)
    report = Report()
    pinned = [_with_parts(spec, lock, config, report) for spec in specs]
    if report.problems:
        raise SpecError(str(config), report.problems)
    return pinned


def _with_parts(spec: ModelSpec, lock: Lock, config: Path, report: Report) -> ModelSpec:
    """The model with what is locked for it, and for each of its adapters."""
    own, *others = (
        part if part.source.is_local else _pinned(part, lock, config, report) for part in spec.parts
    )
    locked = zip(spec.adapters, others, strict=True)
    adapters = tuple(replace(one, locked=part.locked) for one, part in locked)
    return replace(own, adapters=adapters)


def _pinned(spec: ModelSpec, lock: Lock, config: Path, report: Report) -> ModelSpec:
    repository, revision = lock_key(spec)
    name = lock_path(config).name
    found = lock.get((repository, revision))
    if found is None:
        others = sorted(known for locked, known in lock if locked == repository)
        has = f" (it has {', '.join(others)})" if others else ""
        key = "revision" if others else "model"
        message = f"{repository} at {revision} is not in {name}{has}; {_fetch(spec.name)}"
        _disagree(report, spec, key, message)
    elif is_commit(revision) and found.commit != revision:
        message = f"{name} has commit {found.commit} for it; {_fetch(f'--update {spec.name}')}"
        _disagree(report, spec, "revision", message)
    else:
        with_choice = _with_choice(spec, found, name, report)
        return replace(spec, locked=with_choice)
    return spec


def _with_choice(
    spec: ModelSpec, found: LockedSnapshot, name: str, report: Report
) -> LockedSnapshot:
    """The files of a shared snapshot that this model may have."""
    try:
        names = chosen_files(spec, found.files)
    except NotServableError as error:
        message = f"by {name}, {spec.source.text} {error}"
        if spec.gguf_file is not None:
            _disagree(report, spec, "gguf_file", f"{message}; {_fetch(spec.name)}")
        else:
            _disagree(report, spec, "allow_pickle", message)
        return found
    return LockedSnapshot(found.commit, {path: found.files[path] for path in names})


def _disagree(report: Report, spec: ModelSpec, key: str, message: str) -> None:
    place = spec.places.get(key) or spec.places["model"]
    report.add(place, message)


def _fetch(arguments: str) -> str:
    return f"run hf-triton fetch {arguments}"


def chosen_files(spec: ModelSpec, names: Iterable[str]) -> list[str]:
    """The files that a model, or the adapter that ``spec`` stands for, may have of its repository.

    Raises NotServableError.
    """
    if spec.gguf_file is not None:
        return choose_gguf_file(names, spec.gguf_file)
    return (choose_model_files if spec.adapter is None else choose_adapter_files)(
        names, spec.allow_pickle
    )


def is_commit(revision: str) -> bool:
    """Whether a revision is a commit itself, which can't move."""
    return len(revision) == 40 and not set(revision) - set("0123456789abcdef")


def _lock(root: Node, report: Report) -> Lock:
    top = schema.keys_of(root, ("models", "version"), report, "a map with 'models' and 'version'")
    version = top.get("version")
    if version is None or version.value != _VERSION:
        report.add(version or root, f"expected version {_VERSION}: another hf-triton wrote it")
        return {}
    return dict(_snapshots(top["models"], report)) if "models" in top else {}


def _snapshots(models: Node, report: Report) -> Iterator[tuple[Key, LockedSnapshot]]:
    for repository, revisions in _entries(models, report):
        for revision, node in _entries(revisions, report):
            yield (repository, revision), _snapshot(node, report)


def _snapshot(node: Node, report: Report) -> LockedSnapshot:
    entries = schema.keys_of(node, ("commit", "files"), report, "a map with commit and files")
    commit = _value(entries, "commit", node, schema.text("a commit", COMMIT_PATTERN), report)
    files = {
        path: _file(path, child, report)
        for path, child in _entries(entries.get("files", node), report)
        if "files" in entries
    }
    if not files:
        report.add(node, "has no files")
    return LockedSnapshot(str(commit), files)


def _file(path: str, node: Node, report: Report) -> LockedFile:
    if not is_safe_path(path):
        report.add(node, "is not a path inside a repository")
    entries = schema.keys_of(node, ("sha256", "size"), report, "a map with sha256 and size")
    size = _value(entries, "size", node, schema.integer(0, unit="bytes"), report)
    sha256 = _value(entries, "sha256", node, schema.text("a SHA-256", _SHA256_PATTERN), report)
    return LockedFile(size, sha256)  # type: ignore[arg-type]


def _value(
    entries: Mapping[str, Node], name: str, node: Node, check: schema.Check, report: Report
) -> object:
    if name not in entries:
        report.add(node, f"missing key '{name}'")
        return None
    value: object = check(entries[name], report)
    return value


def _entries(node: Node, report: Report) -> Iterator[tuple[str, Node]]:
    if not isinstance(node.value, dict):
        report.expected(node, "a map")
        return
    for key, child in node.value.items():
        yield key.name, child

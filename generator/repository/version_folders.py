"""Adds a new version of a Triton model beside the one that is served, and removes it again.

The new version's files are written aside and appear all at once, under their number. The one before
stays, with the config.pbtxt that belonged to it in its own folder, so that either can be loaded.
Stopped anywhere between, the next run finds every file known as ours, and finishes or undoes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from generator.errors import RepositoryError
from generator.render import manifest
from generator.render.digest import CONFIG_FILE, MODEL_FILE, ROUTING_FILE
from generator.render.manifest import MANIFEST_FILE, Manifest
from generator.repository.atomic_files import remove_empty_folders, remove_files, remove_tree, write
from generator.repository.compare import (
    STAGE,
    ModelPlan,
    NotAFileError,
    read_file,
    read_manifest,
    readable_errors,
)
from generator.repository.versions import (
    RENDERED_VERSION,
    config_at,
    current_version,
    is_version,
    needs_launcher,
    renumbered,
    renumbered_path,
    version_of,
)
from generator.spec.triton_models import LAUNCHER_FILE
from generator.yaml_file.regular_file import read_json

_BYTECODE = "__pycache__"


def newest_json(folder: Path, name: str) -> Any:
    """What the newest version in a model's folder has in its JSON file ``name``; None where nothing
    can be read.
    """
    found = folder.glob(f"[1-9]*/{name}")
    with contextlib.suppress(OSError, ValueError):
        return read_json(max(found, key=lambda path: int(path.parent.name)))
    return None


def next_version(folder: Path) -> int:
    """A number above that of every version folder, whoever made it."""
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return 1 + max((int(name) for name in names if is_version(name)), default=0)


def add_version(plan: ModelPlan, number: int, keep: Collection[int]) -> None:
    """Writes what the plan wants as version ``number``; of ours, only that, the version before and
    those in ``keep`` stay. Not written is routing.json, which the version before still reads.

    Raises RepositoryError; what was there before is whole then, unless killed.
    """
    folder, known = plan.folder, plan.known
    new = _files_at(plan, number)
    kept = {*keep, plan.version}
    gone = [path for path in known.files if (of := version_of(path)) and of not in kept]
    final = {path: hash_ for path, hash_ in known.files.items() if path not in gone}
    final |= {path: manifest.digest(content) for path, content in new.items()}
    final |= {renumbered_path(path, number): hash_ for path, hash_ in plan.kept.items()}
    if LAUNCHER_FILE in final and not needs_launcher(final):
        gone.append(LAUNCHER_FILE)
        del final[LAUNCHER_FILE]
    with readable_errors():
        saved = _prepare(plan, number, new, final, gone)
        (folder / STAGE).rename(folder / str(number))
        for path in sorted(new.keys() & {LAUNCHER_FILE, CONFIG_FILE}, reverse=True):
            write(f"{folder}/{path}", new[path])
        _remove(folder, gone)
        write(f"{folder}/{MANIFEST_FILE}", Manifest({**final, **saved}).to_bytes())


def _prepare(
    plan: ModelPlan,
    number: int,
    new: Mapping[str, bytes],
    final: Mapping[str, str],
    gone: Iterable[str],
) -> dict[str, str]:
    """Everything up to the manifest that tells of both versions; returns the copy of config.pbtxt
    with its hash. Where it fails, as on a full disk, nothing is left of it.
    """
    folder, known = plan.folder, plan.known
    saved = f"{plan.version}/{CONFIG_FILE}"
    try:
        _stage(plan, number, new)
        config = _read(folder / CONFIG_FILE)
        write(f"{folder}/{STAGE}/{CONFIG_FILE}", config)
        (folder / STAGE / CONFIG_FILE).replace(folder / saved)
        copy = {saved: manifest.digest(config)}
        touched = (CONFIG_FILE, LAUNCHER_FILE, *gone)
        replacing = {path: hashes for path in touched if (hashes := known.hashes(path))}
        write(f"{folder}/{MANIFEST_FILE}", Manifest({**final, **copy}, replacing).to_bytes())
    except BaseException:
        remove_tree(folder / STAGE)
        if saved not in known.files:
            (folder / saved).unlink(missing_ok=True)
        raise
    return copy


def drop_version(folder: Path) -> None:
    """Takes the current version away, and puts back the config.pbtxt of the one before, which is
    the current one then. Raises RepositoryError where that can't be done, or there is none before.
    """
    known = read_manifest(folder)
    found = sorted({of for path in known.files if (of := version_of(path))})
    if len(found) < 2:
        raise RepositoryError(f"{folder}: has no version before {found or RENDERED_VERSION}")
    previous, current = found[-2:]
    saved = f"{previous}/{CONFIG_FILE}"
    with readable_errors():
        if (folder / str(current)).exists():
            remove_tree(folder / STAGE)
            (folder / str(current)).rename(folder / STAGE)
        remove_tree(folder / STAGE)  # before anything is written: the disk may be full
        config = _read(folder / saved)
        gone = {path for path in known.files if version_of(path) == current} | {saved}
        final = {path: hash_ for path, hash_ in known.files.items() if path not in gone}
        final[CONFIG_FILE] = manifest.digest(config)
        replacing = {path: known.hashes(path) for path in (CONFIG_FILE, saved)}
        write(f"{folder}/{MANIFEST_FILE}", Manifest(final, replacing).to_bytes())
        (folder / saved).replace(folder / CONFIG_FILE)
        write(f"{folder}/{MANIFEST_FILE}", Manifest(final).to_bytes())


def drop_last_version(folder: Path, version: int) -> None:
    """As ``drop_version``, where ``version`` is the current one. Raises RepositoryError."""
    if current_version(read_manifest(folder).paths) == version:
        drop_version(folder)


def replace_config(folder: Path, config: bytes) -> None:
    """Writes another config.pbtxt, for a while, beside the same files. Raises RepositoryError."""
    known = read_manifest(folder)
    final = {**known.files, CONFIG_FILE: manifest.digest(config)}
    replacing = {CONFIG_FILE: known.hashes(CONFIG_FILE)}
    with readable_errors():
        write(f"{folder}/{MANIFEST_FILE}", Manifest(final, replacing).to_bytes())
        write(f"{folder}/{CONFIG_FILE}", config)
        write(f"{folder}/{MANIFEST_FILE}", Manifest(final).to_bytes())


def files_of_version(folder: Path, version: int) -> dict[str, bytes] | None:
    """An older version's files under the paths of a rendering, with its config.pbtxt; None where
    it is not whole any more. Raises RepositoryError.
    """
    known = read_manifest(folder)
    prefix = f"{version}/"
    found: dict[str, bytes] = {}
    for path in known.files:
        if path.startswith(prefix):
            content = _read_or_none(folder / path)
            rendered = renumbered_path(path, RENDERED_VERSION)
            if content is None or not (known.wrote(path, content) or rendered == MODEL_FILE):
                return None
            is_config = path == f"{prefix}{CONFIG_FILE}"
            found[CONFIG_FILE if is_config else rendered] = content
    if needs_launcher(found):
        found[LAUNCHER_FILE] = _read(folder / LAUNCHER_FILE)
    if CONFIG_FILE not in found:
        return None
    return {**found, CONFIG_FILE: config_at(found[CONFIG_FILE], RENDERED_VERSION)}


def current_files(folder: Path) -> dict[str, bytes]:
    """What lies in the folder as its current version, under the paths of a rendering. Raises
    RepositoryError where a file of ours is missing.
    """
    known = read_manifest(folder)
    current = f"{current_version(known.files)}/"
    found = {}
    for path in known.files:
        if path.startswith(current) or version_of(path) is None:
            inner = path.removeprefix(current)
            at = path if inner == path else f"{RENDERED_VERSION}/{inner}"
            found[at] = _read(folder / path)
    return {
        path: config_at(content, RENDERED_VERSION) if path == CONFIG_FILE else content
        for path, content in found.items()
    }


def _files_at(plan: ModelPlan, number: int) -> dict[str, bytes]:
    """What the plan wants, under the paths of version ``number``."""
    wanted = {change.path: change.new for change in plan.changes if change.new is not None}
    wanted.pop(ROUTING_FILE, None)
    return renumbered(wanted, plan.version, number)


def _stage(plan: ModelPlan, number: int, files: Mapping[str, bytes]) -> None:
    """Writes the version's files aside; those that are not ours, such as an export of the user's,
    come along.
    """
    stage, before = plan.folder / STAGE, plan.folder / str(plan.version)
    remove_tree(stage)
    stage.mkdir()
    for path, content in files.items():
        if version_of(path) == number:
            write(f"{stage}/{path.partition('/')[2]}", content)
    ours = {path for path in plan.known.paths if version_of(path) == plan.version}
    for path in _entries(before, before):
        if f"{plan.version}/{path}" not in ours and path != CONFIG_FILE:
            _carry(before / path, stage / path)


def _entries(folder: Path, top: Path) -> Iterator[str]:
    """Every file and link below ``top``, relative to it."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink():
            if entry.name != _BYTECODE:
                yield from _entries(entry, top)
        else:
            yield entry.relative_to(top).as_posix()


def _carry(source: Path, target: Path) -> None:
    """A second name for the same bytes, for weights are large; where that can't be, a copy."""
    if os.path.lexists(target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)


def _remove(folder: Path, paths: list[str]) -> None:
    """Removes files of older versions, and what was carried on from them to a later one."""
    remove_files(folder, paths)
    for version in sorted({of for path in paths if (of := version_of(path))}):
        for path in _entries(folder / str(version), folder / str(version)):
            if _is_carried(folder, version, path):
                (folder / str(version) / path).unlink()
    remove_empty_folders(folder, paths)


def _is_carried(folder: Path, version: int, path: str) -> bool:
    """Whether a later version has the very same file."""
    file = folder / str(version) / path
    others = (entry for entry in folder.iterdir() if is_version(entry.name))
    return any(
        int(other.name) > version and (other / path).exists() and file.samefile(other / path)
        for other in others
    )


def _read(path: Path) -> bytes:
    content = _read_or_none(path)
    if content is None:
        raise RepositoryError(f"{path}: is missing")
    return content


def _read_or_none(path: Path) -> bytes | None:
    try:
        return read_file(path)
    except NotAFileError as error:
        raise RepositoryError(f"{path}: {error}") from None

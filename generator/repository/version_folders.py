"""Adds a version of a Triton model beside the one that is served, or removes it. The one before
keeps its config.pbtxt in its own folder, so that either can be loaded.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from generator.errors import RepositoryError
from generator.render import manifest
from generator.render.manifest import CONFIG_FILE, ROUTING_FILE
from generator.repository.compare import ModelPlan, NotAFileError, read_file, read_manifest
from generator.repository.staging import finish, install
from generator.repository.versions import (
    RENDERED_VERSION,
    current_version,
    is_version,
    needs_launcher,
    renumbered,
    renumbered_path,
    version_of,
)
from generator.spec.triton_models import LAUNCHER_FILE


def next_version(folder: Path) -> int:
    """A number above all version folders', those of others too."""
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return 1 + max((int(name) for name in names if is_version(name)), default=0)


def add_version(plan: ModelPlan, number: int, keep: Collection[int]) -> None:
    """Writes the plan as version ``number``. Of our versions only this one, the one before and
    those in ``keep`` stay. Leaves routing.json, which the version before still reads. Raises
    RepositoryError.
    """
    known, saved = plan.known, f"{plan.version}/{CONFIG_FILE}"
    wanted = {change.path: change.new for change in plan.changes if change.new is not None}
    wanted.pop(ROUTING_FILE, None)
    new = {**renumbered(wanted, plan.version, number), saved: _read(plan.folder / CONFIG_FILE)}
    kept = {*keep, plan.version}
    final = {path: hash_ for path, hash_ in known.items() if version_of(path) in (None, *kept)}
    final |= {path: manifest.digest(content) for path, content in new.items()}
    final |= {renumbered_path(path, number): hash_ for path, hash_ in plan.kept.items()}
    if LAUNCHER_FILE in final and not needs_launcher(final):
        del final[LAUNCHER_FILE]
    install(plan.folder, new, final, carried=plan.version)


def drop_version(folder: Path) -> None:
    """Removes the current version, and puts back the config.pbtxt of the one before. Raises
    RepositoryError where there is none.
    """
    known = read_manifest(folder)
    found = sorted({of for path in known if (of := version_of(path))})
    if len(found) < 2:
        raise RepositoryError(f"{folder}: has no version before {found or RENDERED_VERSION}")
    previous, current = found[-2:]
    saved = f"{previous}/{CONFIG_FILE}"
    config = _read(folder / saved)
    final = {
        path: hash_
        for path, hash_ in known.items()
        if version_of(path) != current and path != saved
    }
    install(folder, {CONFIG_FILE: config}, {**final, CONFIG_FILE: manifest.digest(config)})


def drop_last_version(folder: Path, version: int) -> None:
    """Drops ``version`` if it is still the current one. Raises RepositoryError."""
    finish(folder)
    if current_version(read_manifest(folder)) == version:
        drop_version(folder)


def current_files(folder: Path) -> dict[str, bytes]:
    """The current version's files under the paths of a rendering. Raises RepositoryError."""
    known = read_manifest(folder)
    current = f"{current_version(known)}/"
    found = {}
    for path in known:
        if path.startswith(current) or version_of(path) is None:
            inner = path.removeprefix(current)
            at = path if inner == path else f"{RENDERED_VERSION}/{inner}"
            found[at] = _read(folder / path)
    return found


def _read(path: Path) -> bytes:
    try:
        content = read_file(path)
    except NotAFileError as error:
        raise RepositoryError(f"{path}: {error}") from None
    if content is None:
        raise RepositoryError(f"{path}: is missing")
    return content

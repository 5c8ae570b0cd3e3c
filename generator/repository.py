"""Writes the model repository; no other module does.

A model's folder is written in three steps: the manifest with the hashes of old and new contents;
the files one by one, each into a temporary file that then takes its place; the manifest of the new
contents alone. Stopped anywhere between, the next run finds every file known as ours and finishes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from generator.compare import (
    Action,
    ModelPlan,
    NotAFileError,
    linked_parent,
    read_file,
    read_manifest,
    readable_errors,
    temporary,
)
from generator.errors import RepositoryError
from generator.manifest import MANIFEST_FILE, WEIGHTS_FOLDER, Manifest


@contextlib.contextmanager
def locked(repository: Path) -> Iterator[None]:
    """Makes the repository's folder and keeps other runs out of it. Raises RepositoryError."""
    descriptor = _opened(repository)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = "another hf-triton is writing to it; wait for that one"
            raise RepositoryError(f"{repository}: {message}") from None
        except OSError:
            pass  # a file system without locks, such as some NFS mounts
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_model(folder: Path) -> Iterator[None]:
    """Keeps everybody else from loading, unloading or changing a model of a running server; waits
    for whoever does it now. Raises RepositoryError.
    """
    descriptor = _opened(folder)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int:
    """A descriptor of the folder, which is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RepositoryError(f"{folder}: can't be used: {error.strerror}") from None


def apply(plan: ModelPlan) -> None:
    """Carries out a plan, its conflicts included: who wants those kept does not call it."""
    final = plan.final
    touched = [change for change in plan.changes if change.action is not Action.IDENTICAL]
    with readable_errors():
        plan.folder.mkdir(exist_ok=True)
        known = {change.path: plan.known.hashes(change.path) for change in touched}
        journal = Manifest(final.files, {path: kept for path, kept in known.items() if kept})
        _write(f"{plan.folder}/{MANIFEST_FILE}", journal.to_bytes())
        _remove_leftovers(plan)
        for change in touched:
            if change.new is None:
                _remove_file(plan.folder / change.path)
            else:
                _write(f"{plan.folder}/{change.path}", change.new)
        gone = [change.path for change in touched if change.new is None]
        _remove_empty_folders(plan.folder, gone)
        if journal != final:
            _write(f"{plan.folder}/{MANIFEST_FILE}", final.to_bytes())


@dataclass(frozen=True)
class Removal:
    """What pruning a model's folder takes away and what it leaves; paths relative to the folder."""

    folder: Path
    removed: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    removes_weights: bool
    known: Manifest

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take away."""
        return not self.removed and not self.removes_weights


def plan_removal(folder: Path, weights: bool, force: bool) -> Removal:
    """What pruning ``folder`` means. Raises RepositoryError where its manifest is damaged."""
    known = read_manifest(folder)
    removed, kept = [], []
    for path in sorted(known.paths):
        reason = _reason_to_keep(folder, path, known, force)
        if reason is None:
            removed.append(path)
        elif reason:
            kept.append((path, reason))
    has_weights = os.path.lexists(folder / WEIGHTS_FOLDER)
    if has_weights and not weights:
        kept.append((WEIGHTS_FOLDER, "weights; --weights removes them"))
    others = _foreign_entry(folder, known)
    if others:
        kept.append((others, "not written by hf-triton"))
    only_manifest = not removed and not kept
    if only_manifest:
        removed.append(MANIFEST_FILE)
    return Removal(folder, tuple(removed), tuple(kept), has_weights and weights, known)


def remove(removal: Removal) -> None:
    """Takes away our files, and the folder itself where nothing else is left in it."""
    folder, known = removal.folder, removal.known
    edited = {path for path, _ in removal.kept} & known.paths
    with readable_errors():
        for path in removal.removed:
            _remove_file(folder / path)
        if removal.removes_weights:
            _remove_tree(folder / WEIGHTS_FOLDER)
        _remove_empty_folders(folder, removal.removed)
        if edited or os.path.lexists(folder / WEIGHTS_FOLDER):
            # Still ours in part: a later prune has to know.
            left = {path: known.hashes(path)[0] for path in edited}
            _write(f"{folder}/{MANIFEST_FILE}", Manifest(left).to_bytes())
            return
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: the rest is the user's
            folder.rmdir()


# Below, strings and os rather than pathlib: for a thousand models it halves the time.


def _write(path: str, content: bytes) -> None:
    """Puts ``content`` at ``path`` so that nobody ever sees half of it."""
    scratch = temporary(path)
    try:
        descriptor = _create(scratch)
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        descriptor = _create(scratch)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(scratch, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)  # noqa: PTH108
        raise


def _create(path: str) -> int:
    """A new file, never through a link; one that an interrupted run left behind is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108
        return os.open(path, flags, 0o666)


def _remove_leftovers(plan: ModelPlan) -> None:
    """Removes the temporary files of an interrupted run."""
    if plan.interrupted:
        for path in {*plan.known.paths, *(change.path for change in plan.changes), MANIFEST_FILE}:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(temporary(f"{plan.folder}/{path}"))  # noqa: PTH108


def _remove_empty_folders(folder: Path, paths: Iterable[str]) -> None:
    """Removes the folders that these files stood in, where nothing is left in them."""
    parents = {parent for path in paths for parent in PurePosixPath(path).parents}
    for parent in sorted(parents, key=lambda parent: len(parent.parts), reverse=True):
        if parent.parts:
            with contextlib.suppress(OSError):
                (folder / parent).rmdir()


def _remove_file(path: Path) -> None:
    """Removes a file of ours, and what Python compiled from it while it was served."""
    path.unlink(missing_ok=True)
    if path.suffix == ".py":
        cache = path.parent / "__pycache__"
        for compiled in cache.glob(f"{path.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            cache.rmdir()


def _remove_tree(path: Path) -> None:
    """Removes a folder; of a link only the link."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


def _reason_to_keep(folder: Path, path: str, known: Manifest, force: bool) -> str | None:
    """Why pruning leaves a file of ours: None to remove it, empty where there is none."""
    linked = linked_parent(folder, frozenset((path,)))
    if linked:
        return linked
    try:
        content = read_file(folder / path)
    except NotAFileError as error:
        return str(error)
    if content is None:
        return ""
    return None if force or known.wrote(path, content) else "edited by hand"


def _foreign_entry(folder: Path, known: Manifest) -> str:
    """Something directly in the model's folder that is neither ours nor its weights."""
    ours = {PurePosixPath(path).parts[0] for path in known.paths}
    found = sorted(
        {entry.name for entry in folder.iterdir()} - ours - {MANIFEST_FILE, WEIGHTS_FOLDER}
    )
    return found[0] if found else ""

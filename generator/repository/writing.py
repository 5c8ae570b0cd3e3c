"""Writes the model repository; no other module does."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from generator.errors import RepositoryError
from generator.render import manifest
from generator.render.manifest import MANIFEST_FILE, WEIGHTS_FOLDER, Manifest
from generator.repository.compare import (
    STAGE,
    TEMPORARY_SUFFIX,
    Action,
    ModelPlan,
    NotAFileError,
    linked_parents,
    read_file,
    read_manifest,
    readable_errors,
)
from generator.repository.staging import (
    finish,
    install,
    remove_empty_folders,
    remove_files,
    remove_tree,
    write,
)

_LOCKS = Path("/proc/locks")  # psutil knows of no locks
_POLL_S = 0.05
_AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def locked(repository: Path, timeout_s: float = 0.0) -> AbstractContextManager[None]:
    """Makes the repository's folder and keeps other runs out of it. Raises RepositoryError."""
    busy = f"{repository}: another hf-triton"
    return _locked(repository, timeout_s, busy, " is writing to it; wait for that one")


def locked_model(folder: Path, timeout_s: float = math.inf) -> AbstractContextManager[None]:
    """Keeps others from loading or changing a model of a running server. Raises RepositoryError."""
    busy = f"{folder.name} is still being loaded or changed by another hf-triton"
    return _locked(folder, timeout_s, busy, ": try again later")


@contextlib.contextmanager
def locked_file(file: Path, on_busy: Callable[[], None]) -> Iterator[int]:
    """Makes a file and locks it: only one process at a time is in the block. ``on_busy`` is called
    before another one is waited for. A child that is given the descriptor holds the lock even when
    it outlives this process. Raises OSError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not has_locked(descriptor):
            on_busy()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Returns whether another hf-triton, or another thread, loads or changes a model."""
    try:
        descriptor = os.open(folder, _AS_FOLDER)
    except (OSError, ValueError):  # it was removed, which stays so, or has a zero byte
        return False
    try:
        return not has_locked(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(folder: Path, timeout_s: float, *busy: str) -> Iterator[None]:
    """Locks a folder; the error names the holder between the parts of ``busy``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, _AS_FOLDER)
    except OSError as error:
        raise RepositoryError(f"{folder}: can't be used: {error.strerror}") from None
    try:
        deadline = time.monotonic() + timeout_s
        while not has_locked(descriptor):
            if time.monotonic() >= deadline:
                raise RepositoryError(lock_holder(descriptor).join(busy))
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def finish_interrupted(repository: Path) -> None:
    """Ends what killed processes have begun. Raises RepositoryError."""
    stages = sorted(repository.glob(f"*/{STAGE}"))
    half = sorted(repository.glob(f".*{TEMPORARY_SUFFIX}/"))
    if stages or half:
        with locked(repository):
            for folder in half:
                remove_tree(folder)
            for stage in stages:
                with locked_model(stage.parent):
                    finish(stage.parent)


def has_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks, such as some NFS mounts
    return True


def apply(plan: ModelPlan) -> None:
    """Carries out a plan, and overwrites files that are in conflict."""
    changed = (change for change in plan.changes if change.action is not Action.IDENTICAL)
    new = {change.path: change.new for change in changed if change.new is not None}
    install(plan.folder, new, plan.final)


@dataclass(frozen=True)
class Removal:
    """Plans the pruning of a model's folder: removed and kept paths, relative to the folder."""

    folder: Path
    removed: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    removes_weights: bool
    known: Manifest


def plan_removal(folder: Path, weights: bool, force: bool) -> Removal:
    """Plans the pruning of ``folder``. Raises RepositoryError where its manifest is damaged."""
    known = read_manifest(folder)
    removed, kept = [], []
    linked = linked_parents(folder, frozenset(known))
    for path in sorted(known):
        outside = (why for at, why in linked.items() if path.startswith(at and f"{at}/"))
        reason = next(outside, None) or _reason_to_keep(folder, path, known, force)
        if reason is None:
            removed.append(path)
        elif reason:
            kept.append((path, reason))
    has_weights = os.path.lexists(folder / WEIGHTS_FOLDER)
    if has_weights and not weights:
        kept.append((WEIGHTS_FOLDER, "weights; --weights removes them"))
    ours = {PurePosixPath(path).parts[0] for path in known}
    ours |= {MANIFEST_FILE, WEIGHTS_FOLDER, STAGE}
    if others := sorted({entry.name for entry in folder.iterdir()} - ours):
        kept.append((others[0], "not written by hf-triton"))
    if not removed and not kept:
        removed.append(MANIFEST_FILE)
    return Removal(folder, tuple(removed), tuple(kept), has_weights and weights, known)


def remove(removal: Removal) -> None:
    folder, known = removal.folder, removal.known
    edited = {path for path, _ in removal.kept} & known.keys()
    with readable_errors():
        remove_tree(folder / STAGE)
        remove_files(folder, removal.removed)
        if removal.removes_weights:
            remove_tree(folder / WEIGHTS_FOLDER)
        remove_empty_folders(folder, removal.removed)
        if edited or os.path.lexists(folder / WEIGHTS_FOLDER):
            # Still ours in part: a later prune has to know.
            left = {path: known[path] for path in edited}
            write(f"{folder}/{MANIFEST_FILE}", manifest.to_bytes(left))
            return
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: the rest is the user's
            folder.rmdir()


def _reason_to_keep(folder: Path, path: str, known: Manifest, force: bool) -> str | None:
    """The reason why pruning keeps a file of ours; None to remove it, empty if it is gone."""
    try:
        content = read_file(f"{folder}/{path}")
    except NotAFileError as error:
        return str(error)
    if content is None:
        return ""
    return None if force or known.get(path) == manifest.digest(content) else "edited by hand"


def lock_holder(descriptor: int) -> str:
    """Names the process that holds the lock: `` (process 4711)``, or an empty text."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        info = os.fstat(descriptor)
        device = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
        for line in _LOCKS.read_text(encoding="utf-8").splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE <pid> <device> ...
            if fields[1] == "FLOCK" and fields[5] == device and int(fields[4]) > 0:
                return f" (process {fields[4]})"
    return ""

"""Compares the rendered files of a Triton model with those in its folder. Never follows a symbolic
link below the repository's root: what it leads to is not ours.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import stat
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from generator.errors import RepositoryError
from generator.render import manifest
from generator.render.manifest import (
    CONFIG_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    WEIGHTS_FOLDER,
    Manifest,
    digest,
    with_digest,
)
from generator.repository import versions
from generator.spec.model_source import python_mistake

TEMPORARY_SUFFIX = ".hf-triton-tmp"
# In a model's folder: where what it is to hold is put together.
STAGE = f".version{TEMPORARY_SUFFIX}"
# The mode of a script: a shell has to read it, so the server's user may too.
_RUNNABLE = 0o755


class Action(enum.Enum):
    CREATE = "create"
    UPDATE = "update"
    IDENTICAL = "identical"
    REMOVE = "remove"
    CONFLICT = "conflict"


@dataclass(frozen=True)
class Change:
    """One file; ``new`` is None if it is to be removed, ``old`` if there is no regular file yet."""

    path: str
    action: Action
    old: bytes | None
    new: bytes | None
    reason: str = ""


@dataclass(frozen=True)
class ModelPlan:
    """Plans one model; ``blocked`` says why its folder can't be used. ``version`` is the one that
    is compared and written. ``kept`` are files that the user has edited, with the hashes of their
    generated text.
    """

    folder: Path
    changes: tuple[Change, ...]
    known: Manifest
    interrupted: bool
    blocked: str = ""
    force_helps: bool = True
    version: int = versions.RENDERED_VERSION
    kept: Mapping[str, str] = field(default_factory=dict)
    keeps_edits: bool = True

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def conflicts(self) -> list[str]:
        if self.blocked:
            return [f"{self.folder}: {self.blocked}"]
        found = (change for change in self.changes if change.action is Action.CONFLICT)
        return [f"{self.folder / change.path}: {change.reason}" for change in found]

    @property
    def final(self) -> Manifest:
        new = {change.path: change.new for change in self.changes if change.new is not None}
        hashes = {path: digest(content) for path, content in new.items()}
        older = versions.older_files(self.known, self.version)
        return {**older, **hashes, **self.kept}

    @functools.cached_property
    def is_current(self) -> bool:
        untouched = all(change.action is Action.IDENTICAL for change in self.changes)
        finished = not self.blocked and not self.interrupted
        return untouched and finished and self.known == self.final

    def paths(self, action: Action) -> list[str]:
        return [change.path for change in self.changes if change.action is action]


def compare(
    folder: Path, files: Mapping[str, bytes], *, keep_edits: bool = True, written: str = ""
) -> ModelPlan:
    """Plans the changes after which ``folder`` holds the rendered ``files`` as its current version.

    An edited model.py stays as it is, unless its code would be rendered otherwise now: that is a
    conflict. Where ``files`` have the edits already, ``written`` is the hash of what was written.
    """
    blocked = _not_a_folder(folder)
    if blocked:
        return ModelPlan(folder, (), {}, False, blocked, force_helps=False)
    if not os.path.lexists(folder):
        new = tuple(Change(path, Action.CREATE, None, file) for path, file in files.items())
        return ModelPlan(folder, new, {}, False, keeps_edits=keep_edits)
    with readable_errors():
        known, blocked, interrupted = _read_manifest(folder, files)
    version = versions.current_version(known)
    rendered, files = files, versions.renumbered(files, versions.RENDERED_VERSION, version)
    if outside := linked_parents(folder, frozenset((*known, *files))):
        linked = next(iter(outside.values()))
        return ModelPlan(folder, (), known, False, linked, force_helps=False)
    own = versions.renumbered_path(MODEL_FILE, version)
    edited = {own: written} if written else {}
    stale = sorted(known.keys() - files.keys() - versions.older_files(known, version).keys())
    changes = [
        change
        for path in (*files, *stale)
        if (change := _change(folder, path, files.get(path), known, path in edited))
    ]
    if keep_edits and not written and own in files and known.get(own) == digest(files[own]):
        for change in changes:
            if change.path == own and change.action is Action.CONFLICT and change.old is not None:
                files = with_digest({**rendered, MODEL_FILE: change.old})
                return compare(folder, files, written=known[own])
    if edited and not blocked and (mistake := python_mistake(files[own], own)):
        blocked = f"edited by hand, and not valid Python: {mistake}"
    return ModelPlan(
        folder,
        tuple(changes),
        known,
        interrupted,
        blocked,
        version=version,
        kept={} if blocked else edited,
        keeps_edits=keep_edits,
    )


def edited_hash(folder: Path, version: int) -> str:
    """The hash of what was written as a version's model.py, if the user edited it; else empty."""
    known, path = read_manifest(folder), versions.renumbered_path(MODEL_FILE, version)
    return known.get(path, "") if hash_of(folder / path) not in ("", known.get(path)) else ""


def owned_folders(repository: Path, but: Container[str] = ()) -> Iterator[Path]:
    if not repository.exists():
        return
    with readable_errors():
        entries = sorted(os.scandir(repository), key=lambda entry: entry.name)
    for entry in entries:
        is_folder = entry.name not in but and entry.is_dir(follow_symlinks=False)
        if entry.name.endswith(TEMPORARY_SUFFIX):
            continue  # what a killed run has begun
        if is_folder and os.path.lexists(os.path.join(entry.path, MANIFEST_FILE)):  # noqa: PTH118
            yield Path(entry.path)


def read_manifest(folder: Path) -> Manifest:
    try:
        return manifest.parse(read_file(folder / MANIFEST_FILE) or b"")
    except (ValueError, NotAFileError) as error:
        raise RepositoryError(f"{folder / MANIFEST_FILE}: damaged: {error}") from None


def folder_version(folder: Path) -> int:
    return versions.current_version(read_manifest(folder))


class NotAFileError(Exception):
    """Something else, such as a link or a folder, lies where a file should."""


def read_file(path: Path | str) -> bytes | None:
    """The content of a regular file, None where nothing is. Raises NotAFileError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        if os.path.islink(path):  # noqa: PTH114, a thousand models: no Path for each file
            raise NotAFileError("is a symbolic link") from None
        if _made_readable(path):
            return read_file(path)
        raise NotAFileError(f"can't be read: {error.strerror}") from None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise NotAFileError("is not a regular file")
        # One read holds all of it, unless the file grew or is larger than one read can be.
        content = os.read(descriptor, info.st_size + 1)
        if len(content) == info.st_size:
            return content
        with open(descriptor, "rb", closefd=False) as file:
            return content + file.read()
    finally:
        os.close(descriptor)


def hash_of(path: Path) -> str:
    """The hash of a regular file; empty where none is."""
    with contextlib.suppress(NotAFileError):
        content = read_file(path)
        return "" if content is None else digest(content)
    return ""


def _made_readable(path: Path | str) -> bool:
    """Triton 24.10 leaves a script to its owner's right to execute alone: gives its mode back."""
    with contextlib.suppress(OSError):  # another user's
        if os.lstat(path).st_mode == stat.S_IFREG | stat.S_IXUSR:
            os.chmod(path, _RUNNABLE)  # noqa: PTH101
            return True
    return False


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Turns what the operating system refuses into a RepositoryError."""
    try:
        yield
    except OSError as error:
        raise RepositoryError(f"{error.filename}: {error.strerror}") from None


def is_script(content: bytes) -> bool:
    return content.startswith(b"#!")


def temporary(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}{TEMPORARY_SUFFIX}"


def _not_a_folder(path: Path | str) -> str:
    """The reason why files can't be written below ``path``; empty where they can."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return ""
    except NotADirectoryError:
        return f"{Path(path).parent} is not a folder"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    if stat.S_ISDIR(mode):
        return ""
    name = Path(path).name
    if stat.S_ISLNK(mode):
        return f"{name} is a symbolic link, and hf-triton writes through none"
    return f"{name} is not a folder"


def linked_parents(folder: Path, paths: frozenset[str]) -> dict[str, str]:
    """The parent folders that can't be entered without leaving ``folder``, and why; outer ones
    first.
    """
    # lstat follows a link before a slash
    joined = ((one, f"{folder}/{one}" if one else str(folder)) for one in ("", *parents(paths)))
    return {parent: reason for parent, path in joined if (reason := _not_a_folder(path))}


@functools.lru_cache
def parents(paths: frozenset[str]) -> list[str]:
    """All folders that the paths lie in, outer ones first."""
    found = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    return sorted(found - {"."}, key=len)


def _read_manifest(folder: Path, files: Mapping[str, bytes]) -> tuple[Manifest, str, bool]:
    """The folder's manifest, the reason why the folder isn't ours, and whether a run broke off."""
    try:
        raw = read_file(f"{folder}/{MANIFEST_FILE}")
        if raw is not None:
            known = manifest.parse(raw)
            leftover = os.path.lexists(f"{folder}/{STAGE}")
            return known, "", leftover or raw != manifest.to_bytes(known)
    except (ValueError, NotAFileError) as error:
        return {}, f"{MANIFEST_FILE} is damaged: {error}", False
    ours = {WEIGHTS_FOLDER, STAGE}
    foreign = sorted({entry.name for entry in folder.iterdir()} - ours) if folder.exists() else []
    with contextlib.suppress(NotAFileError):
        config = read_file(folder / CONFIG_FILE)
        if not foreign or (config is not None and config == files.get(CONFIG_FILE)):
            return {}, "", bool(foreign)  # new, or ours and only its manifest is gone
    return {}, f"exists, holds {foreign[0]}, and was not made by hf-triton", False


def _change(
    folder: Path, path: str, new: bytes | None, known: Manifest, is_edited: bool
) -> Change | None:
    """Plans one file; ``new`` is None if it is no longer generated. Returns None if it is not on
    disk either.
    """
    gone = "" if new is not None else "no longer generated, but "
    try:
        old = read_file(f"{folder}/{path}")
    except NotAFileError as error:
        return Change(path, Action.CONFLICT, None, new, f"{gone}{error}")
    if old is None:
        return None if new is None else Change(path, Action.CREATE, None, new)
    if old == new and (not is_script(new) or _can_be_run(f"{folder}/{path}")):
        # Kept once: models share most of their files.
        return Change(path, Action.IDENTICAL, new, new)
    if is_edited or known.get(path) == digest(old):
        return Change(path, Action.REMOVE if gone else Action.UPDATE, old, new)
    reason = "edited by hand" if path in known else "not written by hf-triton"
    return Change(path, Action.CONFLICT, old, new, f"{gone}{reason}")


def _can_be_run(script: str) -> bool:
    return os.stat(script).st_mode & stat.S_IRWXU == stat.S_IRWXU  # noqa: PTH116

"""Changes a model's folder so that a process that is killed leaves the old files or the new ones.
What is new is written aside, its manifest last: from then on the change counts as made, and
``finish`` puts it in place, again after a kill. A version folder takes its place by one rename.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from generator.errors import RepositoryError
from generator.render import manifest
from generator.render.manifest import CONFIG_FILE, MANIFEST_FILE, Manifest
from generator.repository.compare import (
    STAGE,
    TEMPORARY_SUFFIX,
    hash_of,
    is_script,
    parents,
    read_manifest,
    readable_errors,
    temporary,
)
from generator.repository.versions import current_version, is_version, version_of

_BYTECODE = "__pycache__"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
# Strings and os rather than pathlib below: for a thousand models it halves the time.


def write(path: str, content: bytes) -> None:
    """Puts ``content`` at ``path`` so that nobody ever sees half of it; a script can be run."""
    scratch = temporary(path)
    try:
        create(scratch, content)
        os.replace(scratch, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)  # noqa: PTH108
        raise


def write_through(path: Path, content: bytes) -> None:
    """Writes a file of the user's, through links; it keeps its mode."""
    target = path.resolve()
    mode = target.stat().st_mode if target.exists() else None
    write(str(target), content)
    if mode is not None:
        target.chmod(mode)


def create(path: str, content: bytes) -> None:
    """Writes a file where none is; a script can be run."""
    descriptor = _created(path, 0o777 if is_script(content) else 0o666)
    try:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
    except OSError as error:
        error.filename = error.filename or path  # a full disk names none
        raise
    finally:
        os.close(descriptor)


def _created(path: str, mode: int) -> int:
    """A new file, never through a link; one that an interrupted run left behind is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108
        return os.open(path, flags, mode)


def remove_empty_folders(folder: Path, paths: Iterable[str]) -> None:
    for parent in reversed(parents(frozenset(paths))):
        with contextlib.suppress(OSError):
            os.rmdir(f"{folder}/{parent}")  # noqa: PTH106


def remove_files(folder: Path, paths: Iterable[str]) -> None:
    """Removes files, and what Python compiled from them."""
    modules: dict[str, set[str]] = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{folder}/{path}")  # noqa: PTH108
        parent, _, name = path.rpartition("/")
        if name.endswith(".py"):
            modules.setdefault(parent, set()).add(name.removesuffix(".py"))
    for parent, names in modules.items():
        cache = folder / parent / _BYTECODE
        for compiled in cache.glob("*.pyc"):
            if compiled.name.partition(".")[0] in names:
                compiled.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it has others' files, or is missing
            cache.rmdir()


def remove_tree(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)


def install(
    folder: Path, new: Mapping[str, bytes], files: Mapping[str, str], carried: int | None = None
) -> None:
    """Writes ``new`` into the folder, and ``files`` as its manifest: other generated files are
    removed. A new version gets the user's own files of the version ``carried``. Raises
    RepositoryError.
    """
    is_new = not os.path.lexists(folder)
    stage = folder.with_name(f".{folder.name}{TEMPORARY_SUFFIX}") if is_new else folder / STAGE
    with readable_errors():
        if os.path.lexists(stage):
            (remove_tree if is_new else finish)(stage if is_new else folder)
        try:
            for parent in ("", *parents(frozenset(new))):
                os.mkdir(f"{stage}/{parent}")  # noqa: PTH102
            for path, content in new.items():
                create(f"{stage}/{path}", content)
            if is_new:
                create(f"{stage}/{MANIFEST_FILE}", manifest.to_bytes(files))
                stage.rename(folder)
                return
            old = _manifest(folder)
            _carry_on(folder, stage, new, files, old, carried)
            write(f"{stage}/{MANIFEST_FILE}", manifest.to_bytes(files))
        except BaseException:
            remove_tree(stage)
            raise
        _place(folder, stage, old, files)


def finish(folder: Path) -> None:
    """Puts in place what was written aside, if all of it was. Raises RepositoryError."""
    stage = folder / STAGE
    with readable_errors():
        if MANIFEST_FILE in _listed(stage):
            _place(folder, stage, _manifest(folder), read_manifest(stage))
        remove_tree(stage)


def _place(folder: Path, stage: Path, old: Manifest, staged: Manifest) -> None:
    """Moves older versions first and config.pbtxt last: Triton goes by it."""
    current = current_version(staged)
    gone = [path for path in old if path not in staged]
    for version in {of for path in gone if (of := version_of(path)) and of > current}:
        if (folder / str(version)).exists():
            (folder / str(version)).rename(stage / f"{version}.old")
    there = {path.partition("/")[0] for path in staged} & _listed(stage)
    for name in sorted(there, key=lambda name: (not is_version(name), name == CONFIG_FILE)):
        if name == str(current):
            _exchange(stage, folder, name, staged)
        else:
            _move(stage, folder, name)
    if gone:
        _remove(folder, gone)
    os.replace(f"{stage}/{MANIFEST_FILE}", f"{folder}/{MANIFEST_FILE}")  # noqa: PTH105
    try:
        stage.rmdir()
    except OSError:  # it holds the old content
        remove_tree(stage)


def _listed(folder: Path) -> set[str]:
    with contextlib.suppress(FileNotFoundError):
        return {*os.listdir(folder)}  # noqa: PTH208, a thousand models
    return set()


def _manifest(folder: Path) -> Manifest:
    """The manifest; empty where there is none, or half of one."""
    with contextlib.suppress(RepositoryError):
        return read_manifest(folder)
    return {}


def _move(stage: Path, folder: Path, name: str) -> None:
    """Moves a file, or the files of a version that is served, one by one."""
    if not (stage / name).is_dir():
        (stage / name).replace(folder / name)
        return
    for path in _entries(stage / name, stage):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / path).replace(folder / path)


def _exchange(stage: Path, folder: Path, name: str, staged: Manifest) -> None:
    """Replaces the current version in one step, unless a killed process has done that already."""
    files = [(path, hash_) for path, hash_ in staged.items() if path.startswith(f"{name}/")]
    if not (folder / name).exists():
        (stage / name).rename(folder / name)
    elif any(hash_of(stage / path) == hash_ != hash_of(folder / path) for path, hash_ in files):
        exchange(stage / name, folder / name)


def exchange(one: Path, other: Path) -> None:
    """Swaps two folders, at once where the file system can (rename(2), RENAME_EXCHANGE)."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    paths = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    if renameat2 is not None and renameat2(*paths, _RENAME_EXCHANGE) == 0:
        return
    if renameat2 is not None and ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))
    replaced = one.with_name(f"{one.name}.old")
    other.rename(replaced)
    one.rename(other)


def _carry_on(
    folder: Path,
    stage: Path,
    new: Mapping[str, bytes],
    files: Mapping[str, str],
    old: Manifest,
    carried: int | None,
) -> None:
    """Links unchanged files of a version folder; of an older version only the user's own."""
    number = current_version(files)
    if not any(version_of(path) == number for path in new):
        return  # unchanged
    source = number if carried is None else carried
    for path in _entries(folder / str(source), folder / str(source)):
        at, is_ours = f"{number}/{path}", f"{source}/{path}" in old
        stays = at in files if is_ours and carried is None else not is_ours
        if stays and at not in new and path != CONFIG_FILE:
            link_or_copy(folder / str(source) / path, stage / at)


def _entries(folder: Path, top: Path) -> Iterator[str]:
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink():
            if entry.name != _BYTECODE:
                yield from _entries(entry, top)
        else:
            yield entry.relative_to(top).as_posix()


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link, for weights are large; where that can't be, a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)


def _remove(folder: Path, paths: list[str]) -> None:
    """Removes generated files, and the user's files of a version that a later one has too."""
    remove_files(folder, paths)
    versions = [int(entry.name) for entry in folder.iterdir() if is_version(entry.name)]
    for version in sorted({of for path in paths if (of := version_of(path))}):
        for path in _entries(folder / str(version), folder / str(version)):
            file = folder / str(version) / path
            others = (folder / str(later) / path for later in versions if later > version)
            if any(other.exists() and file.samefile(other) for other in others):
                file.unlink()
    remove_empty_folders(folder, paths)

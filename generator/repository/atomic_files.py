"""Files put in place and taken away, each in one step that nobody sees half of.

Knows no manifest: writing.py and version_folders.py decide what may be written and removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Container, Iterable
from pathlib import Path

from generator.repository.compare import is_script, parents, temporary

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


def create(path: str, content: bytes) -> None:
    """Writes a file where none is, its folder too; a script can be run."""
    mode = 0o777 if is_script(content) else 0o666
    try:
        descriptor = _created(path, mode)
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        descriptor = _created(path, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError as error:
        error.filename = error.filename or path  # a full disk names none
        raise


def _created(path: str, mode: int) -> int:
    """A new file, never through a link; one that an interrupted run left behind is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108
        return os.open(path, flags, mode)


def remove_empty_folders(folder: Path, paths: Iterable[str]) -> None:
    """Removes the folders that these files stood in, where nothing is left in them."""
    for parent in sorted(parents(paths), key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(f"{folder}/{parent}")  # noqa: PTH106


def remove_files(folder: Path, paths: Iterable[str]) -> None:
    """Removes files of ours, by their paths in ``folder``, and what Python compiled from them while
    they were served.
    """
    modules: dict[str, set[str]] = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{folder}/{path}")  # noqa: PTH108
        parent, _, name = path.rpartition("/")
        if name.endswith(".py"):
            modules.setdefault(parent, set()).add(name.removesuffix(".py"))
    for parent, names in modules.items():
        _remove_compiled(folder / parent / "__pycache__", names)


def _remove_compiled(cache: Path, modules: Container[str]) -> None:
    """Removes ``module.*.pyc`` of these modules, and the folder where nothing else is in it."""
    if not cache.is_dir():
        return
    for compiled in cache.glob("*.pyc"):
        if compiled.name.partition(".")[0] in modules:
            compiled.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        cache.rmdir()


def remove_tree(path: Path) -> None:
    """Removes a folder, if it is there; of a link only the link."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)

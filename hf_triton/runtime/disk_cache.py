"""Stores bytes, one file each, for processes that start later on the same machine, in a folder that
only this user can write to. A damaged file is ignored, and its content computed again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_DIGEST_BYTES = 32
_LAYOUT = 2  # of files; those of another release have other names


def path_of(kind: str, *key: object) -> Path | None:
    """Returns the file of a key; None where nothing can be stored."""
    name = hashlib.sha256(repr((_LAYOUT, sys.version, *key)).encode()).hexdigest()[:32]
    return next((folder / name for folder in _folders(kind) if is_made_private(folder)), None)


def get(path: Path | None) -> bytes:
    """Returns a file's content; empty where there is none."""
    with suppress(OSError):
        data = path.read_bytes() if path else b""
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() == data[:_DIGEST_BYTES]:
            return data[_DIGEST_BYTES:]
    return b""


def put(path: Path, content: bytes) -> None:
    """Raises OSError where it can't be stored."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(hashlib.sha256(content).digest() + content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # remains only if the move failed


@contextmanager
def exclusive(path: Path | None) -> Iterator[None]:
    """Locks a file while its content is computed, so that models that load at once don't all
    compute it: look again for it. Does nothing where no file can be stored.
    """
    with ExitStack() as locks:
        with suppress(OSError):  # some file systems have no locks
            if path is not None:
                lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                locks.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cache_folder(*names: str) -> Path:
    """A folder of ours in the user's cache. Raises RuntimeError for a user without a home."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home, "hf-triton", *names)


def _folders(kind: str) -> Iterator[Path]:
    """Yields candidates: not every user has a home, nor every machine a shared folder."""
    with suppress(RuntimeError):
        yield cache_folder("kept", kind)
    with suppress(OSError):
        yield Path(tempfile.gettempdir()) / f"hf-triton-{os.getuid()}" / kind


def is_made_private(path: Path) -> bool:
    """Makes a folder; False where it can't, or others could change its content."""
    try:
        for folder in (path.parent, path):
            # one by one: mkdir(parents=True) ignores the mode for parents
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _is_private(path.parent) and _is_private(path)
    except (OSError, RuntimeError):
        return False


def _is_private(folder: Path) -> bool:
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_ours and os.access(folder, os.W_OK) and not status.st_mode & 0o022

"""Keeps what a model's process has worked out, for those that start later on the same machine:
small values of Python, one file each. Whatever is wrong with a file, its value is worked out anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import marshal
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import hf_triton.runtime

from .private_folders import private_folders

_DIGEST_BYTES = 32
_MOST_WAIT_S, _BETWEEN_S = 60.0, 0.02  # for others, and until it is asked again


def get(kind: str, key: tuple[Any, ...]) -> Any:
    """The value that was kept under this key, or None. It is the caller's to change."""
    path = path_of(kind, key)
    return path and get_at(path, key)


def get_at(path: Path, key: tuple[Any, ...]) -> Any:
    """The value that a file holds, or None where it was kept under another key."""
    try:
        data = path.read_bytes()
        if data and hashlib.sha256(data[_DIGEST_BYTES:]).digest() == data[:_DIGEST_BYTES]:
            named, value = marshal.loads(data[_DIGEST_BYTES:])  # noqa: S302, from a private folder
            return value if named == _named(key) else None
    except (OSError, EOFError, ValueError, TypeError):
        pass
    return None


def put(kind: str, key: tuple[Any, ...], value: Any) -> None:
    """Keeps a value of numbers, texts, tuples, sets and dicts, if that can be."""
    path = path_of(kind, key)
    if path is not None:
        with suppress(OSError):
            put_at(path, key, value)


def put_at(path: Path, key: tuple[Any, ...], value: Any) -> None:
    """Puts a value in a file of a private folder. Raises OSError where that can't be."""
    data = marshal.dumps((_named(key), value))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(hashlib.sha256(data).digest() + data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # where it could not be moved


@contextmanager
def exclusive(path: Path | None) -> Iterator[None]:
    """No other process works out meanwhile what a file keeps, so that copies of a model that load
    at once don't all do the same: look again what is kept. Goes on beside them after a minute, and
    where nothing can be kept.
    """
    with ExitStack() as locks:
        with suppress(OSError):  # not all file systems lock
            if path is not None:
                lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                locks.callback(os.close, lock)
                _wait_for(lock)
        yield


def _wait_for(lock: int) -> None:
    end_s = time.monotonic() + _MOST_WAIT_S
    while time.monotonic() < end_s:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(_BETWEEN_S)


def path_of(kind: str, key: tuple[Any, ...]) -> Path | None:
    """Where a value is kept, if it can be."""
    if hf_triton.runtime.version_folder is None:
        return None
    folder = next(private_folders(kind, "kept"), None)
    return folder and folder / hashlib.sha256(_named(key).encode()).hexdigest()[:32]


def _named(key: tuple[Any, ...]) -> str:
    return repr((sys.version, *key))

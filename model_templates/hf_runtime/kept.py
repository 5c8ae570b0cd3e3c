"""Keeps what a model's process has worked out, for those that start later on the same machine:
small values of Python, one file each. Whatever is wrong with a file, its value is worked out anew.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import hf_runtime

from .private_folders import private_folders

_DIGEST_BYTES = 32


def read(kind: str, key: tuple[Any, ...]) -> Any:
    """The value that was kept under this key, or None. It is the caller's to change."""
    path = _path(kind, key)
    return path and read_at(path, key)


def read_at(path: Path, key: tuple[Any, ...]) -> Any:
    """The value that a file holds, or None where it was kept under another key."""
    try:
        data = path.read_bytes()
        if data and hashlib.sha256(data[_DIGEST_BYTES:]).digest() == data[:_DIGEST_BYTES]:
            named, value = marshal.loads(data[_DIGEST_BYTES:])  # noqa: S302, from a private folder
            return value if named == _named(key) else None
    except (OSError, EOFError, ValueError, TypeError):
        pass
    return None


def keep(kind: str, key: tuple[Any, ...], value: Any) -> None:
    """Keeps a value of numbers, texts, tuples, sets and dicts, if that can be."""
    path = _path(kind, key)
    if path is not None:
        with suppress(OSError):
            keep_at(path, key, value)


def keep_at(path: Path, key: tuple[Any, ...], value: Any) -> None:
    """The same in a file of a private folder. Raises OSError where that can't be."""
    data = marshal.dumps((_named(key), value))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(hashlib.sha256(data).digest() + data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # where it could not be moved


def _path(kind: str, key: tuple[Any, ...]) -> Path | None:
    if hf_runtime.version_folder is None:
        return None
    folder = next(private_folders(kind, "kept"), None)
    return folder and folder / hashlib.sha256(_named(key).encode()).hexdigest()[:32]


def _named(key: tuple[Any, ...]) -> str:
    return repr((sys.version, *key))

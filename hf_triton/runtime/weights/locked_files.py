"""Compares a snapshot in the cache with the files of models.lock: size, SHA-256, no file missing,
no file added.

The cache has the layout of ``huggingface_hub``
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache). Imports nothing else of the
runtime, so that `hf-triton fetch` and `verify` check by the same rules as the server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LockedFile:
    """One file of models.lock: its size in bytes, and its SHA-256 in hex."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Difference:
    """A file of a snapshot that differs from models.lock, and ``what`` differs."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path} {self.what}"


def repository_folder(cache_dir: Path, repository: str) -> Path:
    return cache_dir / f"models--{repository.replace('/', '--')}"


def snapshot_folder(cache_dir: Path, repository: str, commit: str) -> Path:
    """The folder of a commit's files in a cache."""
    return repository_folder(cache_dir, repository) / "snapshots" / commit


def missing_files(folder: Path, locked: Mapping[str, LockedFile]) -> list[str]:
    """The locked files that are missing; a dangling link counts as missing."""
    return [path for path in sorted(locked) if not (folder / path).is_file()]


def differences(
    folder: Path, locked: Mapping[str, LockedFile], sha256: Callable[[Path], str]
) -> Iterator[Difference]:
    """Every file of the snapshot that differs from models.lock; a file is hashed only if its size
    is right.
    """
    for path, expected in sorted(locked.items()):
        found = folder / path
        if not found.is_file():
            yield Difference(path, "is missing")
        elif found.stat().st_size != expected.size:
            size = found.stat().st_size
            yield Difference(path, f"has {size} bytes where models.lock has {expected.size}")
        elif sha256(found) != expected.sha256:
            yield Difference(path, "has another SHA-256 than in models.lock")
    for path in added_files(folder, locked):
        yield Difference(path, "is not in models.lock")


def added_files(folder: Path, locked: Mapping[str, LockedFile]) -> list[str]:
    """The files in the snapshot that are not locked, sorted; links to folders included."""
    found: list[str] = []
    for parent, folders, files in os.walk(folder):
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        found += [Path(parent, name).relative_to(folder).as_posix() for name in files + linked]
    return sorted(set(found) - set(locked))

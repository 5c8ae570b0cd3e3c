"""Holds a snapshot in the cache against the files that models.lock names: size, SHA-256, nothing
missing, nothing added.

The cache is laid out as ``huggingface_hub`` does it
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache). Imports nothing else of the
runtime, so that `hf-triton fetch` and `verify` judge as the server does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LockedFile:
    """One file as it was when it was locked: bytes, and SHA-256 in hex."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Difference:
    """A file of a snapshot that is not as locked."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path} {self.what}"


def repository_folder(cache_dir: Path, repository: str) -> Path:
    """Where a Hub repository lies in a cache."""
    return cache_dir / f"models--{repository.replace('/', '--')}"


def snapshot_folder(cache_dir: Path, repository: str, commit: str) -> Path:
    """Where a commit's files lie in a cache."""
    return repository_folder(cache_dir, repository) / "snapshots" / commit


def missing_files(folder: Path, locked: Mapping[str, LockedFile]) -> list[str]:
    """The locked files that are not there; a link that leads nowhere is not there."""
    return [path for path in sorted(locked) if not (folder / path).is_file()]


def differences(
    folder: Path, locked: Mapping[str, LockedFile], sha256: Callable[[Path], str]
) -> Iterator[Difference]:
    """Every file of the snapshot that is not as locked; sizes before hashes are asked for."""
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
    """What lies in the snapshot beside the locked files, sorted; links to folders too."""
    found: list[str] = []
    for parent, folders, files in os.walk(folder):
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        found += [Path(parent, name).relative_to(folder).as_posix() for name in files + linked]
    return sorted(set(found) - set(locked))

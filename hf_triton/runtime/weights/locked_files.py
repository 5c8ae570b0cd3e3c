"""Compares a snapshot in the cache with the files of models.lock: size, SHA-256, no file missing,
no file added. The SHA-256 of cached files is computed once and recorded in a file of the cache.

The cache has the layout of ``huggingface_hub``
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache). Imports nothing of the runtime,
so that `hf-triton fetch` checks by the same rules as the server.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LockedFile:
    """One file of models.lock: its size in bytes, and its SHA-256 in hex."""

    size: int
    sha256: str


def repository_folder(cache_dir: Path, repository: str) -> Path:
    return cache_dir / f"models--{repository.replace('/', '--')}"


def snapshot_folder(cache_dir: Path, repository: str, commit: str) -> Path:
    """The folder of a commit's files in a cache."""
    return repository_folder(cache_dir, repository) / "snapshots" / commit


def cached_snapshot(cache_dir: Path, repository: str, revision: str | None) -> Path:
    """The folder of the files that a cache has of a revision; it may be missing."""
    revision = revision or "main"
    ref = repository_folder(cache_dir, repository) / "refs" / revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    return snapshot_folder(cache_dir, repository, commit)


def differences(
    folder: Path, locked: Mapping[str, LockedFile], sha256: Callable[[Path], str]
) -> Iterator[tuple[str, str]]:
    """Yields each file that differs from models.lock, with a text that names it; a file is hashed
    only if its size is right.
    """
    for path, expected in sorted(locked.items()):
        found = folder / path
        if not found.is_file():
            yield path, f"{path} is missing"
        elif found.stat().st_size != expected.size:
            size = found.stat().st_size
            yield path, f"{path} has {size} bytes where models.lock has {expected.size}"
        elif sha256(found) != expected.sha256:
            yield path, f"{path} has another SHA-256 than in models.lock"
    for path in added_files(folder, locked):
        yield path, f"{path} is not in models.lock"


def added_files(folder: Path, locked: Iterable[str]) -> list[str]:
    """The files in the snapshot that are not locked, sorted; links to folders included."""
    found: list[str] = []
    for parent, folders, files in os.walk(folder):
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        found += [Path(parent, name).relative_to(folder).as_posix() for name in files + linked]
    return sorted(set(found) - set(locked))


RECORD_FILE = ".hf-triton-files.json"
_BLOCK = 1 << 20


def hash_file(path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """The file's SHA-256 in hex; ``on_bytes`` gets the size of each block that was read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            on_bytes(len(block))
    return digest.hexdigest()


class FileHashes:
    """The record of one cache folder. Safe to use from several threads.

    A recorded hash counts for a file of the same size, modification time and inode. That guards
    against damage and mistakes, not against anyone who can write into the cache: they could write
    the record too. If the cache is read-only nothing is recorded, and each process hashes once.
    """

    def __init__(self, cache_dir: Path) -> None:
        self.cache_dir = cache_dir
        self._lock = threading.Lock()
        self._hash_records: dict[str, list[Any]] = _read(cache_dir / RECORD_FILE)
        self._changed = False

    def recorded(self, path: Path) -> str | None:
        """The recorded hash, if the file is unchanged since; else None."""
        entry = self._hash_records.get(self._key(path))
        with contextlib.suppress(OSError):  # gone meanwhile
            if entry is not None and entry[:3] == _identity(path):
                return str(entry[3])
        return None

    def sha256(self, path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> str:
        """The file's hash: recorded, else computed and then recorded by ``save``."""
        found = self.recorded(path)
        if found is None:
            before = _identity(path)
            found = hash_file(path, on_bytes)
            self.add(path, found, before)
        return found

    def add(self, path: Path, sha256: str, identity: list[int] | None = None) -> None:
        """Records a file's hash; ``save`` writes it."""
        with self._lock:
            self._hash_records[self._key(path)] = [*(identity or _identity(path)), sha256]
            self._changed = True

    def forget(self, path: Path) -> None:
        with self._lock:
            self._changed |= self._hash_records.pop(self._key(path), None) is not None

    def names(self, folder: Path) -> set[str]:
        """The recorded files below a folder, whether they still exist or not."""
        start = f"{self._key(folder)}/"
        return {key.removeprefix(start) for key in self._hash_records if key.startswith(start)}

    def save(self) -> None:
        """Writes the record, without files that are gone; no effect in a read-only cache."""
        with self._lock:
            if not self._changed:
                return
            present = {
                key: entry
                for key, entry in sorted(self._hash_records.items())
                if (self.cache_dir / key).is_file()
            }
            with contextlib.suppress(OSError):
                _write(self.cache_dir / RECORD_FILE, json.dumps(present, indent=1) + "\n")
            self._changed = False

    def _key(self, path: Path) -> str:
        return path.relative_to(self.cache_dir).as_posix()


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # as if nothing had been hashed
    entries = value.items() if isinstance(value, dict) else ()
    return {key: entry for key, entry in entries if isinstance(entry, list) and len(entry) == 4}


def _write(path: Path, text: str) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as folder:
        scratch = Path(folder, path.name)  # where nobody else can plant a link
        scratch.write_text(text, encoding="utf-8")
        scratch.chmod(0o644)
        scratch.replace(path)

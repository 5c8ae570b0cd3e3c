"""A model's cache of one Hub repository, in ``huggingface_hub``'s layout: contents in ``blobs/``,
and a link for each file under ``snapshots/<commit>/``. A snapshot appears only once all of its
files are complete and verified.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from generator.errors import RepositoryError
from generator.fetch.hub_client import HubFile
from generator.fetch.hub_errors import disk_error
from generator.render.manifest import WEIGHTS_FOLDER
from generator.spec.model_spec import ModelSpec
from generator.spec.runtime_rules import (
    FileHashes,
    LockedFile,
    added_files,
    repository_folder,
    snapshot_folder,
)

LOCK_FILE = ".hf-triton-fetch.lock"


class CachedFile(NamedTuple):
    """A file in a cache whose hash is right."""

    sha256: str
    place: Path


class ModelCache:
    """The cache of one Hub repository for the model ``name`` in the model ``repository``."""

    def __init__(
        self, repository: Path, name: str, hub_id: str, hashes: FileHashes | None = None
    ) -> None:
        self.name = name
        self.hub_id = hub_id
        self.folder = repository / name / WEIGHTS_FOLDER
        self.hashes = FileHashes(self.folder) if hashes is None else hashes
        self._blobs = repository_folder(self.folder, hub_id) / "blobs"

    def snapshot(self, commit: str) -> Path:
        """The folder of a commit's files."""
        return snapshot_folder(self.folder, self.hub_id, commit)

    def blob(self, file: HubFile) -> Path:
        """The path of a file's content."""
        return self._blobs / file.name

    def part(self, file: HubFile) -> Path:
        """The path of a partial download."""
        return self._blobs / f"{file.name}.incomplete"

    def find(
        self, commit: str, path: str, file: HubFile, on_bytes: Callable[[int], None]
    ) -> CachedFile | None:
        """The cached file if its hash is right, else None."""
        for place in (self.snapshot(commit) / path, self.blob(file)):
            with contextlib.suppress(OSError):
                if place.is_file() and place.stat().st_size == file.size:
                    sha256 = self._sha256(place, file, on_bytes)
                    if sha256 and _is_right(place, file, sha256):
                        return CachedFile(sha256, place)
        return None

    def _sha256(self, place: Path, file: HubFile, on_bytes: Callable[[int], None]) -> str | None:
        """The recorded hash: an object store reports versions and no hashes, so a file is known
        only if it was hashed when it was downloaded.
        """
        if file.version is not None:
            return self.hashes.recorded(place)
        return self.hashes.sha256(place, on_bytes)

    def forget(self, place: Path) -> None:
        """Drops the records of a wrong file, also those at the target of a link."""
        self.hashes.forget(place)
        with contextlib.suppress(ValueError):  # a link out of the cache
            self.hashes.forget(self.folder / place.resolve().relative_to(self.folder.resolve()))

    def note(self, file: HubFile, sha256: str) -> CachedFile:
        """Records the hash of a file that was just downloaded."""
        self.hashes.add(self.blob(file), sha256)
        if file.version is not None:  # no later check could verify it
            self.hashes.save()
        return CachedFile(sha256, self.blob(file))

    def take(self, found: CachedFile, file: HubFile) -> CachedFile:
        """Takes a file from another cache, by a hard link or a copy. Raises FetchError."""
        target = self.blob(file)
        scratch = self.part(file)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch.unlink(missing_ok=True)
            try:
                os.link(found.place.resolve(), scratch)
            except OSError:  # another file system, or one without links
                shutil.copyfile(found.place, scratch)
            scratch.replace(target)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise disk_error(error, target) from error
        return self.note(file, found.sha256)

    def complete(
        self, commit: str, revision: str, files: Mapping[str, tuple[HubFile, LockedFile]]
    ) -> None:
        """Makes a snapshot of exactly these files, all of which are cached. Raises FetchError."""
        folder = self.snapshot(commit)
        try:
            if not folder.exists():
                self._make(folder, files)
            for path, (file, locked) in files.items():
                self._mend(folder / path, file, locked)
            locked_files = {path: locked for path, (_, locked) in files.items()}
            for path in added_files(folder, locked_files):
                (folder / path).unlink()
            if revision != commit:
                _write(repository_folder(self.folder, self.hub_id) / "refs" / revision, commit)
            for path, (_, locked) in files.items():
                self.hashes.add(folder / path, locked.sha256)
        except OSError as error:
            raise disk_error(error, folder) from error
        self.hashes.save()

    def _make(self, folder: Path, files: Mapping[str, tuple[HubFile, LockedFile]]) -> None:
        scratch = folder.with_name(f".{folder.name}.hf-triton-tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        for path, (file, _) in files.items():
            self._link(scratch / path, folder / path, self.blob(file))
        scratch.rename(folder)

    def _mend(self, place: Path, file: HubFile, locked: LockedFile) -> None:
        """Links a downloaded file in the place of a missing or wrong one."""
        blob = self.blob(file)
        if self.hashes.recorded(place) == locked.sha256 or not blob.is_file():
            return
        wrong = place.resolve()
        if wrong != blob.resolve() and wrong.parent == self._blobs.resolve():
            wrong.unlink(missing_ok=True)  # or huggingface_hub would find and link it
        scratch = place.with_name(f".{place.name}.hf-triton-tmp")
        scratch.unlink(missing_ok=True)
        self._link(scratch, place, blob)
        scratch.replace(place)

    def _link(self, link: Path, place: Path, blob: Path) -> None:
        """Makes a link to the blob at ``link``, to be moved to ``place``."""
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, place.parent))

    @contextlib.contextmanager
    def locked(self, on_busy: Callable[[str], None]) -> Iterator[None]:
        """Makes the folder and keeps other fetches out of it.

        Where one is there, ``on_busy`` hears of it, and then it is waited for.

        Raises:
            RepositoryError: it can't be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self.folder / LOCK_FILE, flags, 0o666)
        except OSError as error:
            raise RepositoryError(f"{self.folder}: can't be written: {error.strerror}") from None
        try:
            with contextlib.suppress(OSError):  # no locks there, as on some NFS mounts
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    on_busy(f"{self.folder}: another hf-triton is fetching {self.name}")
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def caches_of(repository: Path, specs: Iterable[ModelSpec]) -> list[ModelCache]:
    """The cache of each spec; caches in one model's folder share their records of hashes."""
    hashes: dict[str, FileHashes] = {}
    caches = []
    for spec in specs:
        cache = ModelCache(repository, spec.name, spec.source.text, hashes.get(spec.name))
        hashes[spec.name] = cache.hashes
        caches.append(cache)
    return caches


def _is_right(place: Path, file: HubFile, sha256: str) -> bool:
    """Whether a file has the expected hash, or the place of the expected version."""
    if file.git_oid is None:
        return file.version is not None or sha256 == file.sha256
    return file.git_oid == _git_oid(place)


def _git_oid(place: Path) -> str:
    """The git object id of the file's content."""
    content = place.read_bytes()
    header = b"blob %d\0" % len(content)
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.hf-triton-tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)

"""A model's cache of one Hub repository, in ``huggingface_hub``'s layout. A snapshot's folder
appears only when all of its files are complete and verified. Downloads files into it: resumes where
one was cut, in this run or an earlier one, and moves it into the cache only if its hash is right.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Event
from typing import NamedTuple

from generator.fetch import hub_client, object_store
from generator.fetch.hub_client import (
    HubFile,
    InterruptedFetchError,
    OnWait,
    WrongContentError,
    disk_error,
)
from generator.render.manifest import WEIGHTS_FOLDER
from generator.repository.compare import temporary
from generator.repository.staging import link_or_copy, write
from generator.spec.model_spec import ModelSpec
from hf_triton.runtime.weights.hub_files import is_stored
from hf_triton.runtime.weights.locked_files import (
    FileHashes,
    LockedFile,
    added_files,
    repository_folder,
    snapshot_folder,
)

BLOCK = 1 << 20


class CachedFile(NamedTuple):
    """A file in a cache whose hash is right."""

    sha256: str
    place: Path


class ModelCache:
    """The cache of one Hub repository for the model ``name``, in the folder of ``hashes``."""

    def __init__(self, name: str, hub_id: str, hashes: FileHashes) -> None:
        self.name = name
        self.hub_id = hub_id
        self.folder = hashes.cache_dir
        self.hashes = hashes
        self._blobs = repository_folder(self.folder, hub_id) / "blobs"

    def snapshot(self, commit: str) -> Path:
        return snapshot_folder(self.folder, self.hub_id, commit)

    def blob(self, file: HubFile) -> Path:
        return self._blobs / file.name

    def part(self, file: HubFile) -> Path:
        return self._blobs / f"{file.name}.incomplete"

    def find(
        self, commit: str, path: str, file: HubFile, on_bytes: Callable[[int], None]
    ) -> CachedFile | None:
        """Returns the cached file, or None if no file has the right hash. Object stores report
        versions instead of hashes, so a file of theirs is found only if its hash was recorded at
        download. ``on_bytes`` is told how many bytes were hashed.
        """
        for place in (self.snapshot(commit) / path, self.blob(file)):
            with contextlib.suppress(OSError):
                if not place.is_file() or place.stat().st_size != file.size:
                    continue
                if file.version is not None:
                    sha256, is_right = self.hashes.recorded(place), True
                else:
                    sha256 = self.hashes.sha256(place, on_bytes)
                    is_right = sha256 == file.sha256
                if file.git_oid is not None:
                    is_right = _git_oid(place) == file.git_oid
                if sha256 and is_right:
                    return CachedFile(sha256, place)
        return None

    def forget(self, place: Path) -> None:
        """Drops the recorded hashes of a wrong file and, if it is a link, of its target."""
        self.hashes.forget(place)
        with contextlib.suppress(ValueError):  # the target is outside the cache
            self.hashes.forget(self.folder / place.resolve().relative_to(self.folder.resolve()))

    def note(self, file: HubFile, sha256: str) -> CachedFile:
        """Records the hash of a blob that was just written."""
        self.hashes.add(self.blob(file), sha256)
        self.hashes.save()
        return CachedFile(sha256, self.blob(file))

    def take(self, found: CachedFile, file: HubFile) -> CachedFile:
        """Hard-links or copies a file of another cache into this one. Raises FetchError."""
        target = self.blob(file)
        scratch = self.part(file)
        try:
            scratch.unlink(missing_ok=True)
            link_or_copy(found.place.resolve(), scratch)
            scratch.replace(target)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise disk_error(error, target) from error
        return self.note(file, found.sha256)

    def complete(
        self,
        commit: str,
        revision: str,
        files: Mapping[str, tuple[HubFile, LockedFile]],
        kept: Iterable[str],
    ) -> None:
        """Makes the commit's snapshot of ``files``, all of which are cached already. Removes other
        files from it except those in ``kept``. Raises FetchError.
        """
        folder = self.snapshot(commit)
        try:
            if not folder.exists():
                scratch = Path(temporary(str(folder)))
                shutil.rmtree(scratch, ignore_errors=True)
                for path, (file, _) in files.items():
                    self._link(scratch / path, folder / path, self.blob(file))
                scratch.rename(folder)
            for path, (file, locked) in files.items():
                self._mend(folder / path, file, locked)
            for path in added_files(folder, {*files, *kept}):
                (folder / path).unlink()
            if revision != commit:
                ref = repository_folder(self.folder, self.hub_id) / "refs" / revision
                ref.parent.mkdir(parents=True, exist_ok=True)
                write(str(ref), commit.encode())
            for path, (_, locked) in files.items():
                self.hashes.add(folder / path, locked.sha256)
        except OSError as error:
            raise disk_error(error, folder) from error
        self.hashes.save()

    def _mend(self, place: Path, file: HubFile, locked: LockedFile) -> None:
        """Links a snapshot's file to its blob again if its recorded hash is not the locked one."""
        blob = self.blob(file)
        if self.hashes.recorded(place) == locked.sha256 or not blob.is_file():
            return
        wrong = place.resolve()
        if wrong != blob.resolve() and wrong.parent == self._blobs.resolve():
            wrong.unlink(missing_ok=True)  # or huggingface_hub would find and link it
        scratch = Path(temporary(str(place)))
        scratch.unlink(missing_ok=True)
        self._link(scratch, place, blob)
        scratch.replace(place)

    def _link(self, link: Path, place: Path, blob: Path) -> None:
        """Creates ``link``, which points to ``blob`` once it is moved to ``place``."""
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, place.parent))


def caches_of(repository: Path, specs: Iterable[ModelSpec]) -> list[ModelCache]:
    hashes = cache(lambda name: FileHashes(repository / name / WEIGHTS_FOLDER))
    cache_of = cache(lambda name, hub_id: ModelCache(name, hub_id, hashes(name)))
    return [cache_of(spec.name, spec.source.text) for spec in specs]


def _git_oid(file: Path) -> str:
    """The hash by which git names a file's content; the Hub has larger ones as LFS."""
    # https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class PartialFile:
    """The first ``size`` bytes of ``expected``, and their SHA-256; ``came_whole``: all of them in
    one answer. ``on_bytes`` is told of bytes received (negative: discarded). Raises FetchError.
    """

    def __init__(self, path: Path, expected: HubFile, on_bytes: Callable[[int], None]) -> None:
        self.path, self.expected, self._on_bytes = path, expected, on_bytes
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise disk_error(error, path) from error
        self._start()
        while block := os.pread(self._descriptor, BLOCK, self.size):  # of an earlier fetch
            self._hash(block)
        self.came_whole = self.size == 0
        if self.size > expected.size:
            self.restart()

    def _start(self) -> None:
        self.size, self.came_whole = 0, True
        self._sha256 = hashlib.sha256()

    def _hash(self, block: bytes) -> None:
        self._sha256.update(block)
        self.size += len(block)
        self._on_bytes(len(block))

    def restart(self) -> None:
        self._on_bytes(-self.size)
        os.ftruncate(self._descriptor, 0)
        self._start()

    def write(self, block: bytes) -> None:
        """Raises WrongContentError beyond the expected size, FetchError for a full disk."""
        if self.size + len(block) > self.expected.size:
            raise WrongContentError(f"more than the expected {self.expected.size} bytes came")
        view = memoryview(block)
        try:
            while view:
                written = os.pwrite(self._descriptor, view, self.size)
                self._hash(view[:written].tobytes())
                view = view[written:]
        except OSError as error:
            raise disk_error(error, self.path, self.expected.size - self.size) from error

    @property
    def is_complete(self) -> bool:
        return self.size == self.expected.size

    @property
    def is_right(self) -> bool:
        expected = self.expected
        if not self.is_complete:
            return False
        if expected.sha256 is not None:
            return self.sha256 == expected.sha256
        if expected.version is not None:  # each block's size was checked
            return True
        return _git_oid(self.path) == expected.git_oid

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def finish(self, target: Path) -> None:
        try:
            os.fsync(self._descriptor)
            self.path.replace(target)
        except OSError as error:
            raise disk_error(error, target) from error

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._descriptor)


def part_size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


@dataclass(frozen=True)
class Download:
    """One file of a commit, and the cache that lacks it."""

    commit: str
    path: str
    file: HubFile
    cache: ModelCache

    @property
    def num_bytes(self) -> int:
        """The bytes that are still to come."""
        return max(0, self.file.size - part_size(self.cache.part(self.file)))


def download(
    wanted: Download, stop: Event, on_bytes: Callable[[int], None], on_wait: OnWait
) -> CachedFile:
    """Raises FetchError, and whatever the client raises of a source that refuses or stays out of
    reach.
    """
    cache, file = wanted.cache, wanted.file
    with contextlib.closing(PartialFile(cache.part(file), file, on_bytes)) as part:
        _complete(part, wanted, stop, on_wait)
        if not part.is_right and not part.came_whole:
            # Its parts may come from different versions of the file.
            part.restart()
            _complete(part, wanted, stop, on_wait)
        if not part.is_right:
            part.discard()
            kind, expected = (
                ("SHA-256", file.sha256) if file.sha256 else ("git object", file.git_oid)
            )
            got = f", got SHA-256 {part.sha256}" if file.sha256 else ""
            raise WrongContentError(
                f"{wanted.path} was downloaded, but is not the expected file ({kind} {expected}"
                f"{got}); it was discarded"
            )
        part.finish(cache.blob(file))
        return cache.note(file, part.sha256)


def _complete(part: PartialFile, wanted: Download, stop: Event, on_wait: OnWait) -> None:
    """Receives the missing bytes."""
    try:
        hub_client.retried(partial(_receive, part, wanted, stop), stop, on_wait, lambda: part.size)
    except WrongContentError:
        part.discard()
        raise


def _receive(part: PartialFile, wanted: Download, stop: Event) -> None:
    """Sends one request, from the end of the part, and receives until the connection ends. Raises
    ConnectionError where bytes are missing then.
    """
    if part.is_complete:
        return
    source, path, file = wanted.cache.hub_id, wanted.path, wanted.file
    if is_stored(source):
        opened = object_store.open_file(source, path, part.size, file)
    else:
        opened = hub_client.open_file(source, wanted.commit, path, part.size, file)
    with opened as (start, blocks):
        if start != part.size:  # the server ignores ranges
            part.restart()
        part.came_whole &= part.size == 0
        for block in blocks:
            if stop.is_set():
                raise InterruptedFetchError("interrupted")
            part.write(block)
    if not part.is_complete:
        raise ConnectionError("the connection ended early")

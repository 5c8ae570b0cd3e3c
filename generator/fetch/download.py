"""Downloads one file into a cache; resumes where it was cut, in this run or an earlier one. A file
is moved into the cache only if its hash is right.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from generator.fetch import hub_client, object_store
from generator.fetch.hub_client import (
    HubFile,
    InterruptedFetchError,
    WrongContentError,
    disk_error,
)
from generator.fetch.model_cache import CachedFile, ModelCache
from hf_triton.runtime.weights.hub_files import is_stored

BLOCK = 1 << 20


class PartialFile:
    """The first ``size`` bytes of ``expected``, and their hashes. Raises FetchError."""

    def __init__(self, path: Path, expected: HubFile) -> None:
        self.path = path
        self.expected = expected
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise disk_error(error, path) from error
        self._start()
        while block := os.pread(self._descriptor, BLOCK, self.size):  # of an earlier fetch
            self._hash(block)
        if self.size > expected.size:
            self.restart()

    def _start(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        # https://git-scm.com/book/en/v2/Git-Internals-Git-Objects: how git names a file's content
        header = b"blob %d\0" % self.expected.size
        self._git_oid = hashlib.sha1(header, usedforsecurity=False)

    def _hash(self, block: bytes) -> None:
        self._sha256.update(block)
        if self.expected.git_oid is not None:
            self._git_oid.update(block)
        self.size += len(block)

    def restart(self) -> None:
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
        return self._git_oid.hexdigest() == expected.git_oid

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


@dataclass(frozen=True)
class DownloadEvents:
    """Callbacks of a download: bytes received (negative: discarded), and waits."""

    stop: Event
    on_bytes: Callable[[int], None]
    on_wait: Callable[[BaseException, float], None]


def download(wanted: Download, events: DownloadEvents) -> CachedFile:
    """Raises FetchError, and whatever the client raises of a source that refuses or stays out of
    reach.
    """
    cache, file = wanted.cache, wanted.file
    with contextlib.closing(PartialFile(cache.part(file), file)) as part:
        events.on_bytes(part.size)
        was_empty = part.size == 0
        came_whole = _complete(part, wanted, events) and was_empty
        if not part.is_right and not came_whole:
            # Its parts may come from different versions of the file.
            _restart(part, events)
            _complete(part, wanted, events)
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


def _complete(part: PartialFile, wanted: Download, events: DownloadEvents) -> bool:
    """Receives the missing bytes; returns whether one request sufficed."""
    waits, num_requests = list(hub_client.WAITS_S), 0
    while not part.is_complete:
        before = part.size
        num_requests += 1
        cut: BaseException = ConnectionError("the connection ended early")
        try:
            _receive(part, wanted, events)
        except WrongContentError:
            part.discard()
            raise
        except Exception as error:
            if not hub_client.is_temporary(error):
                raise
            cut = error
        if part.is_complete:
            break
        if part.size > before:
            waits = list(hub_client.WAITS_S)
        elif not waits:
            raise cut
        hub_client.pause(cut, waits.pop(0), events.stop, events.on_wait)
    return num_requests < 2


def _receive(part: PartialFile, wanted: Download, events: DownloadEvents) -> None:
    """Sends one request, from the end of the part, and receives until the connection ends."""
    source, path, file = wanted.cache.hub_id, wanted.path, wanted.file
    if is_stored(source):
        opened = object_store.open_file(source, path, part.size, file)
    else:
        opened = hub_client.open_file(source, wanted.commit, path, part.size, file)
    with opened as (start, blocks):
        if start != part.size:  # the server ignores ranges
            _restart(part, events)
        for block in blocks:
            if events.stop.is_set():
                raise InterruptedFetchError("interrupted")
            part.write(block)
            events.on_bytes(len(block))


def _restart(part: PartialFile, events: DownloadEvents) -> None:
    events.on_bytes(-part.size)
    part.restart()

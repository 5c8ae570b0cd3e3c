"""A file that is being downloaded: the bytes received so far, and their hashes.

Every block is on disk before the next is requested, so that the next fetch resumes where a killed
one stopped. A file is moved into the cache only if its hash is right.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from generator.fetch.hub_client import HubFile, WrongContentError
from generator.fetch.hub_errors import disk_error

_BLOCK = 1 << 20


class PartialFile:
    """The first ``size`` bytes of ``expected``, in the file ``path``. Raises FetchError."""

    def __init__(self, path: Path, expected: HubFile) -> None:
        self.path = path
        self.expected = expected
        self.size = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise disk_error(error, path) from error
        self._start_hashes()
        self._hash_existing()

    def _start_hashes(self) -> None:
        self._sha256 = hashlib.sha256()
        # https://git-scm.com/book/en/v2/Git-Internals-Git-Objects: how git names a file's content
        header = b"blob %d\0" % self.expected.size
        self._git_oid = hashlib.sha1(header, usedforsecurity=False)

    def _hash_existing(self) -> None:
        """Hashes the bytes of an earlier fetch."""
        while block := os.pread(self._descriptor, _BLOCK, self.size):
            self._hash(block)
        if self.size > self.expected.size:
            self.restart()

    def _hash(self, block: bytes) -> None:
        self._sha256.update(block)
        if self.expected.git_oid is not None:
            self._git_oid.update(block)
        self.size += len(block)

    def restart(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self.size = 0
        self._start_hashes()

    def write(self, block: bytes) -> None:
        """Appends. Raises WrongContentError beyond the expected size, FetchError for a
        full disk.
        """
        if self.size + len(block) > self.expected.size:
            raise WrongContentError(f"more than the expected {self.expected.size} bytes came")
        view = memoryview(block)
        try:
            while view:
                written = os.pwrite(self._descriptor, view, self.size)
                self._hash(view[:written].tobytes())
                view = view[written:]
        except OSError as error:
            missing = self.expected.size - self.size
            raise disk_error(error, self.path, missing) from error

    @property
    def is_complete(self) -> bool:
        """Whether all bytes have been received, right or wrong."""
        return self.size == self.expected.size

    @property
    def is_right(self) -> bool:
        """Whether the content has the expected hash."""
        expected = self.expected
        if not self.is_complete:
            return False
        if expected.sha256 is not None:
            return self._sha256.hexdigest() == expected.sha256
        if expected.version is not None:  # each block's size was checked
            return True
        return self._git_oid.hexdigest() == expected.git_oid

    @property
    def sha256(self) -> str:
        """The SHA-256 of the received bytes, in hex."""
        return self._sha256.hexdigest()

    def finish(self, target: Path) -> None:
        """Moves the file to its place in the cache. Raises FetchError."""
        try:
            os.fsync(self._descriptor)
            self.path.replace(target)
        except OSError as error:
            raise disk_error(error, target) from error

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file and keeps the received bytes."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def part_size(path: Path) -> int:
    """The number of bytes that an earlier fetch received."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0

"""One measurement at a time in a run's folder: two would write each other's figures."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from generator.errors import PerfError


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Makes ``folder`` and holds it; one that is empty at the end is taken away again.

    Raises PerfError where another process holds it, or it can't be made. The system lets it go
    when this process ends, however it does.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise PerfError(f"{folder} can't be written: {error.strerror}") from None
    try:
        _lock(descriptor, folder)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise PerfError(
                f"{folder}: another measurement is writing there; wait for it, or choose another "
                "--output"
            ) from None
        # A file system without locks: then nothing tells.

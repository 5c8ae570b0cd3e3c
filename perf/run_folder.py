"""A run's folder: one measurement writes in it at a time, and it goes on with its own run alone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from generator.errors import PerfError
from perf.report.schema import REPORT_FILE, Run, read_run, write_run


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Makes ``folder`` and holds it; one that is empty at the end is taken away again.

    Raises PerfError where another process holds it, or it can't be made or written. The system
    lets it go when this process ends, however it does.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise PerfError(f"{folder} can't be written: {error.strerror}") from None
    try:
        _lock(descriptor, folder)
        yield
    except BrokenPipeError:  # whoever read what is printed has gone
        raise
    except OSError as error:
        hint = " (free some)" if error.errno == errno.ENOSPC else ""
        raise PerfError(
            f"{error.filename or folder}: {error.strerror or error}{hint}; what is measured is "
            f"kept in {folder}, and the same command goes on there"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
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


def taken_up(folder: Path, run: Run, otherwise: str = "choose another --output") -> Run:
    """The run that the folder holds, else ``run``, which is written. Raises PerfError where it
    holds one of another kind or scenario, OSError.
    """
    if not (folder / REPORT_FILE).exists():
        write_run(folder, run)
        return run
    try:
        before = read_run(folder)
    except ValueError as error:
        raise PerfError(f"{error}; {otherwise}") from None
    had, asked = dict(before.scenario), json.loads(json.dumps(run.scenario))
    if before.kind != run.kind or had != asked:
        keys = sorted(key for key in {*had, *asked} if had.get(key) != asked.get(key))
        raise PerfError(
            f"{folder} holds another run (different: {', '.join(keys) or before.kind}); {otherwise}"
        )
    return before

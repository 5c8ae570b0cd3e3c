"""Locks a run's folder for one measurement at a time, and lets it continue its own run only."""

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
def locked_folder(folder: Path) -> Iterator[None]:
    """Creates and locks ``folder``; removes it again if it is empty at the end. Raises PerfError
    where another process has locked it, or it can't be created or written. The system releases the
    lock when this process ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise PerfError(f"{folder} can't be written: {error.strerror}") from None
    try:
        _lock(descriptor, folder)
        yield
    except BrokenPipeError:  # the reader of stdout has gone
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
        # The file system has no locks: go on without.


def continued_or_new(folder: Path, run: Run, otherwise: str = "choose another --output") -> Run:
    """The run in the folder, else ``run``, which is written there. Raises PerfError where the
    folder holds a run of another kind or scenario, OSError.
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

"""Streams that go on in another process where the one that computes them dies: the model writes a
journal of what it tells, and the port counts what its caller has.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from hf_triton.runtime.request.abandoned_requests import call_text, journal_file
from hf_triton.runtime.request.stream_journal import head_of


def new_name() -> str:
    """A request's, which nobody can guess."""
    return secrets.token_hex(16)


def first_text(name: str, *, streams: bool = True) -> str:
    """What its model is told of a request of that name when it is sent first; "" of none."""
    return call_text(name, 0, 0.0, name if streams else "") if name else ""


class Stream:
    """One stream, whose journal the model finds under ``name``; ``num_responses`` are those that
    its caller has. ``prefix`` is what the paths of the port's files begin with. ``close`` it.
    """

    def __init__(self, prefix: str, name: str) -> None:
        self.name, self.num_responses = name, 0
        self._path = Path(journal_file(prefix, name))
        with contextlib.suppress(OSError):  # then it ends with its process
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    @property
    def goes_on(self) -> bool:
        """Whether its model keeps the journal."""
        try:
            return self._path.stat().st_size > 0
        except OSError:
            return False

    @property
    def has_lost_process(self) -> bool:
        """Whether the process that keeps the journal has ended."""
        pid = head_of(self._path).get("pid")
        if pid is None:
            return False
        try:
            stat = Path(f"/proc/{int(pid)}/stat").read_bytes()
        except OSError as error:
            return isinstance(error, FileNotFoundError)
        return stat.rpartition(b")")[2].split()[:1] == [b"Z"]

    def close(self) -> None:
        """It has ended."""
        self._path.unlink(missing_ok=True)

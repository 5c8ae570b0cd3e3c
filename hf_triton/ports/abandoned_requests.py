"""Tells the models on this machine which calls nobody waits for any more.

A call that is left is not cancelled at tritonserver, which before 25.06 dies of calls that are
cancelled as they end (https://github.com/triton-inference-server/server/pull/7840, /8078, /8220),
and up to 26.08 of streams that are. Its model finds its file instead, and answers it at once.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

# So long at most a call that was left counts for its caller: one whose model has died never ends.
LEFT_S = 60.0


class AbandonedRequests:
    """The files of the calls of one port; ``prefix`` is what their paths begin with."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._told: set[str] = set()

    def tell(self, call: str) -> None:
        """Nobody waits for it any more."""
        self._told.add(call)
        with contextlib.suppress(OSError):  # then it runs to its end
            os.close(os.open(self._path(call), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def forget(self, call: str) -> None:
        """It has ended."""
        if call in self._told:
            self._told.remove(call)
            with contextlib.suppress(OSError):
                self._path(call).unlink()

    def _path(self, call: str) -> Path:
        return Path(f"{self._prefix}{call}")

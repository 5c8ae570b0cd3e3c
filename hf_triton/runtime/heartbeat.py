"""Writes whether this process is alive and its model ready, for a supervisor: Triton asks models
only from 26.03 on, and notices no process whose interpreter is stuck.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from .repeating import Repeating

# In the environment of a server that `hf-triton serve` has started: what the path of a process'
# file begins with. Its number follows.
VARIABLE = "HF_TRITON_HEARTBEATS"
_BEAT_EVERY_S = 1.0


class Heartbeat(Repeating):
    def __init__(self, is_ready: Callable[[], bool]) -> None:
        super().__init__("heartbeat", self._beat)
        self._is_ready = is_ready
        prefix, self._file = os.environ.get(VARIABLE), -1
        self._path = Path(f"{prefix}{os.getpid()}")
        with contextlib.suppress(OSError):
            if prefix:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(self._path, flags, 0o600)
                self.start()

    def stop(self) -> None:
        """Stops writing; a supervisor must not take the silence for a failure."""
        self.close()
        if self._file >= 0:
            os.close(self._file)
            self._path.unlink(missing_ok=True)

    def _beat(self) -> float:
        os.pwrite(self._file, b"1" if self._is_ready() else b"0", 0)
        return _BEAT_EVERY_S

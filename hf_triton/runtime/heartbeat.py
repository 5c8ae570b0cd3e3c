"""Writes whether this process is alive and its model ready, for a supervisor: Triton asks models
only from 26.03 on, and notices no process whose interpreter is stuck.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

# In the environment of a server that `hf-triton serve` has started: what the path of a process'
# file begins with. Its number follows.
VARIABLE = "HF_TRITON_HEARTBEATS"
_BEAT_EVERY_S = 1.0


class Heartbeat:
    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._stopping = threading.Event()
        prefix = os.environ.get(VARIABLE)
        self._path = Path(f"{prefix}{os.getpid()}") if prefix else None
        self._thread: threading.Thread | None = None
        if self._path:
            self._thread = threading.Thread(
                target=self._run, args=(self._path,), name="heartbeat", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stops writing; a supervisor must not take the silence for a failure."""
        self._stopping.set()
        if self._thread and self._path:
            self._thread.join()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _run(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                while not self._stopping.wait(_BEAT_EVERY_S):
                    os.pwrite(file, b"1" if self._is_ready() else b"0", 0)
            finally:
                os.close(file)

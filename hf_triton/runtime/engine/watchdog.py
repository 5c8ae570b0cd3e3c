"""Times the steps, and detects one that does not end (a hung GPU, a waiting driver). Knows nothing
of what a step does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LOOK_EVERY_S = 1.0


class Watchdog:
    """Calls ``give_up`` once for each step that takes longer than ``limit_s``, from its thread."""

    def __init__(self, limit_s: float, give_up: Callable[[float], None]) -> None:
        self._limit_s = limit_s
        self._give_up = give_up
        self._began_s: float | None = None
        # Or a step that ends while it is found to be late would leave ``is_stuck`` behind.
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self.is_stuck = False
        self.last_step_s = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def begin_step(self) -> None:
        with self._lock:
            self._began_s = time.monotonic()

    def end_step(self) -> None:
        """Stops a step's time, even if it is late."""
        with self._lock:
            if self._began_s is not None:
                self.last_step_s = time.monotonic() - self._began_s
            self._began_s = None
            self.is_stuck = False

    def _run(self) -> None:
        while not self._stopping.wait(min(_LOOK_EVERY_S, self._limit_s / 4)):
            if self._finds_late():
                self._give_up(self._limit_s)

    def _finds_late(self) -> bool:
        """Whether the step has become late since the last check."""
        with self._lock:
            began_s = self._began_s
            is_late = began_s is not None and time.monotonic() - began_s > self._limit_s
            found = is_late and not self.is_stuck
            self.is_stuck = self.is_stuck or is_late
            return found

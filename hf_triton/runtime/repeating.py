"""A thread that does the same again and again, until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from . import log
from .errors import place

AFTER_ERROR_S = 1.0


class Repeating:
    """Calls ``run`` when it is started, and again after as many seconds as it returned, or once it
    is woken: None waits for that alone. Logs what it raises, but not the text; no wake shortens the
    pause after that.
    """

    def __init__(self, name: str, run: Callable[[], float | None]) -> None:
        self._run, self._name = run, name
        self._woken, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Ends the thread, after the call under way."""
        self._closing.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def _repeat(self) -> None:
        while not self._closing.is_set():
            try:
                pause_s = self._run()
            except Exception as error:
                log.error(f"{self._name}: {place(error)}")
                self._closing.wait(AFTER_ERROR_S)
                pause_s = 0.0
            self._woken.wait(pause_s)
            self._woken.clear()

"""A thread that runs what it is given; knows nothing of requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any


class Lane:
    """One thread that runs what it is given, in order; for parts that raise nothing. A
    ThreadPoolExecutor makes a future of each, and takes ten times as long.
    """

    def __init__(self, name: str) -> None:
        self._waiting: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()  # or a part could be put behind the end
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, run: Callable[..., object], /, *arguments: Any) -> None:
        """Raises RuntimeError after ``shutdown``."""
        with self._lock:
            if not self._is_open:
                raise RuntimeError("ended")
            self._waiting.put(partial(run, *arguments))

    def shutdown(self) -> None:
        """Ends the thread once everything that it was given is done."""
        with self._lock:
            self._is_open = False
            self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (part := self._waiting.get()) is not None:
            part()
            del part  # a request is not kept until the next

"""A few threads for hooks, so that a slow hook blocks neither Triton nor the engine.

Knows nothing of requests. The threads are daemons, which concurrent.futures' are not: a hook that
never returns does not keep the process alive.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

Work = Callable[[], None]


class HookThreadPool:
    """Runs work on at most ``num_threads`` threads, in the order of its arrival.

    Work must not raise. A thread is started when there is work and none of them is idle.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._num_started = 0
        self._lock = threading.Lock()

    def submit(self, work: Work) -> None:
        """Runs ``work`` as soon as a thread is free."""
        with self._lock:
            if not self._idle.acquire(blocking=False) and self._num_started < self._num_threads:
                self._num_started += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self._waiting.put(work)

    def close(self) -> None:
        """Ends every thread when it has done what was submitted; waits for none."""
        with self._lock:
            for _ in range(self._num_started):
                self._waiting.put(None)

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            work()
            del work  # holds a request's arrays
            self._idle.release()


class SerialExecutor:
    """Runs work on a pool's threads, one piece at a time and in the order of ``submit``: the
    responses of one request.
    """

    def __init__(self, threads: HookThreadPool) -> None:
        self._threads = threads
        self._waiting: deque[Work] = deque()
        self._is_running = False
        self._lock = threading.Lock()

    def submit(self, work: Work) -> None:
        """Runs ``work`` after what was submitted before."""
        with self._lock:
            self._waiting.append(work)
            if self._is_running:
                return
            self._is_running = True
        self._threads.submit(self._run_next)

    def _run_next(self) -> None:
        self._waiting.popleft()()
        with self._lock:
            self._is_running = bool(self._waiting)
            if not self._is_running:
                return
        self._threads.submit(self._run_next)  # at the end of the queue: other requests wait too

"""Threads that read long texts, so that whoever receives requests goes on with the next.

Knows texts only by their length.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from hf_triton.runtime.errors import OverloadedError
from hf_triton.runtime.tokenizing.lengths import give_memory_back

READ_AT_ONCE = 8192  # characters: a few milliseconds, at the slowest 20
_NUM_THREADS = 2
_MAX_WAITING = 64 * 2**20  # characters of all that wait or are read


class ReadingThreads:
    """Two threads, started with the first long text."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "read")
        self._lock = threading.Lock()  # guards the rest
        self._num_waiting = 0
        self._closed = False

    def run(
        self, num_characters: int, read: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Calls ``read``: at once for a short text, else later from another thread, where ``fail``
        gets what it raises.

        Raises:
            OverloadedError: too much text waits already, or the model is being unloaded.
        """
        if num_characters <= READ_AT_ONCE:
            read()
            return
        with self._lock:
            self._check_open()
            if self._num_waiting and self._num_waiting + num_characters > _MAX_WAITING:
                raise OverloadedError("too many long prompts wait to be read: try again later")
            self._num_waiting += num_characters
            self._threads.submit(partial(self._run, num_characters, read, fail))

    def close(self) -> None:
        """Refuses what waits, and returns when what is being read is read."""
        with self._lock:
            self._closed = True
        self._threads.shutdown()

    def _run(
        self, num_characters: int, read: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> None:
        try:
            self._check_open()
            read()
        except BaseException as error:
            fail(error)
        finally:
            give_memory_back(num_characters)
            with self._lock:
                self._num_waiting -= num_characters

    def _check_open(self) -> None:
        if self._closed:
            raise OverloadedError("the model is being unloaded: try again later")

"""Threads that read requests with files or long texts, so that other requests need not wait. When
a caller's time is up or it has disconnected, it is answered at once and its reading is abandoned.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field

from ..devices.device import num_cores
from ..errors import CancelledError, DeadlineError, OverloadedError
from .cancellation import CancellationWatch, has_left
from .request_parameters import Call
from .responder import Responder, answer_failure, attempt

_FEWEST_THREADS, _MOST_THREADS = 4, 8
MAX_WAITING = {"files": 512 * 2**20, "texts": 64 * 2**20}  # bytes, or characters
DECODING_S = 30.0  # of the files of one request; some formats take seconds for a large image
_UNLOADED = "the model is being unloaded: try again later"

Begin = Callable[[], None]


@dataclass(eq=False)
class Reading:
    """One request that is being read or waits for it; ``deadline_s`` is on the monotonic clock.
    ``seconds_left`` is the time left for decoding all its files; ``is_given_up``: its caller has
    been answered.
    """

    responder: Responder | None = None
    deadline_s: float | None = None
    call: Call | None = None
    seconds_left: float = DECODING_S
    is_given_up: bool = False
    began_s: float = field(default_factory=time.monotonic)

    def problem(self) -> Exception | None:
        """Returns why reading it is pointless; None where it is not."""
        now_s = time.monotonic()
        if self.deadline_s is not None and now_s >= self.deadline_s:
            return DeadlineError("timeout_ms: the time is up; the request was still being read")
        asked = self.responder
        if asked and has_left(asked.is_cancelled, now_s - self.began_s, asked.request_id):
            return CancelledError("the request was cancelled")
        return None


current: ContextVar[Reading | None] = ContextVar("reading", default=None)


def current_reading() -> Reading:
    """The request that this thread reads; on other threads one that is never given up."""
    return current.get() or Reading()


class FileThreads:
    """Threads that read files or texts (``what``), started as they are needed. By default there is
    one for each four cores, and enough that a few slow files leave room for others.
    """

    def __init__(self, num_threads: int | None = None, what: str = "files") -> None:
        num_threads = num_threads or min(_MOST_THREADS, max(_FEWEST_THREADS, num_cores() // 4))
        self._threads = ThreadPoolExecutor(num_threads, what, initializer=_use_one_thread)
        self._kind = what
        # The thread that removes a reading answers it.
        self._open: dict[Reading, Responder] = {}
        self._lock = threading.Lock()  # guards the rest
        self._num_waiting = 0
        self._closed = False
        self._watch = CancellationWatch(self._ask_all)

    def run(self, reading: Reading, num_bytes: int, read: Callable[[], Begin]) -> None:
        """Calls ``read`` later from another thread, and what it returns unless the request was
        given up meanwhile; answers it with the reason for that, or with what either raises. Raises
        OverloadedError: too much waits already, or the model is being unloaded.
        """
        assert reading.responder is not None
        with self._lock:
            if self._closed:
                raise OverloadedError(_UNLOADED)
            most = MAX_WAITING[self._kind]
            if self._num_waiting and self._num_waiting + num_bytes > most:
                raise OverloadedError(f"too many {self._kind} wait to be read: try again later")
            self._num_waiting += num_bytes
            self._open[reading] = reading.responder
            try:
                self._threads.submit(self._run, reading, num_bytes, read)
            except RuntimeError:  # no thread starts; what it took it runs later
                if self._open.pop(reading, None):
                    raise
        self._watch.wake()

    def shutdown(self) -> None:
        """Gives up what waits and what is being read, takes no more, and ends the threads."""
        with self._lock:
            self._closed = True
        for reading in list(self._open):
            self._give_up(reading, OverloadedError(_UNLOADED))
        self._threads.shutdown()
        self._watch.close()

    def _run(self, reading: Reading, num_bytes: int, read: Callable[[], Begin]) -> None:
        current.set(reading)
        try:
            begin = read() if reading in self._open else None
            if begin and (responder := self._open.pop(reading, None)):
                attempt(responder, begin)
        except BaseException as error:  # a panic in the Rust of tokenizers is no Exception
            self._give_up(reading, error)
        current.set(None)
        with self._lock:
            self._num_waiting -= num_bytes

    def _give_up(self, reading: Reading, error: BaseException) -> None:
        if responder := self._open.pop(reading, None):
            reading.is_given_up = True
            answer_failure(responder, error)

    def _ask_all(self) -> int:
        """Answers callers whose time is up or who have left; returns how many are open."""
        readings = list(self._open)
        for reading in readings:
            if error := reading.problem():
                self._give_up(reading, error)
        return len(readings)


def _use_one_thread() -> None:
    """Keeps processors' tensors from taking the engine's cores."""
    import torch

    torch.set_num_threads(1)

"""The requests of one engine between their arrival and their answer.

Each is admitted once and ends once, whatever fails on the way. Knows neither what a request asks
for nor what computes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .. import log
from ..errors import (
    CancelledError,
    EngineError,
    OverloadedError,
    RequestError,
    RuntimeModelError,
    place,
    reason,
)
from .request_ids import labelled
from .responder import Responder


class OpenRequests:
    """At most ``max_queue_size`` of them.

    ``on_end`` is told how each ended: ok, refused, cancelled or error; ``on_turned_away`` is called
    for each that was not admitted. Both are called by one thread at a time.
    """

    def __init__(
        self,
        max_queue_size: int,
        *,
        on_end: Callable[[str], None],
        on_turned_away: Callable[[], None],
    ) -> None:
        self._max_queue_size = max_queue_size
        self._on_end = on_end
        self._on_turned_away = on_turned_away
        self._num_open = 0
        self._closing = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._num_open

    def admit(self, responder: Responder) -> bool:
        """Counts one more; or answers it with why not, and is False."""
        refusal = self._refusal()
        if refusal:
            _tell(responder, OverloadedError(f"{refusal}: try again later"))
        return not refusal

    def run_on(
        self, pool: ThreadPoolExecutor, responder: Responder, part: Callable[[], None]
    ) -> None:
        """Runs a request's part on a thread of ``pool``; on this one after the pool's shutdown,
        when all that is left of it is to say so.
        """
        try:
            pool.submit(self.run, responder, part)
        except RuntimeError:
            self.run(responder, part)

    def run(self, responder: Responder, part: Callable[[], None]) -> None:
        """Runs a request's part; whatever goes wrong is its answer, and its end."""
        try:
            part()
        except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
            _tell(responder, _answerable(error, responder.request_id))
            self.end(_outcome(error))

    def end(self, outcome: str = "ok") -> None:
        """One is answered."""
        with self._changed:
            self._on_end(outcome)
            self._num_open -= 1
            self._changed.notify_all()

    def drain(self, grace_s: float) -> None:
        """Admits no more and waits until those there are have ended, at most so long."""
        with self._changed:
            self._closing = True
            deadline_s = time.monotonic() + grace_s
            while self._num_open and time.monotonic() < deadline_s:
                self._changed.wait(max(0.0, deadline_s - time.monotonic()))

    def _refusal(self) -> str:
        """Why one more is not admitted; empty where it is, and counted."""
        with self._changed:
            if not self._closing and self._num_open < self._max_queue_size:
                self._num_open += 1
                return ""
            self._on_turned_away()
            if self._closing:
                return "the model is being unloaded"
            return f"the queue is full: {self._num_open} requests (max_queue_size)"


def _tell(responder: Responder, error: Exception) -> None:
    try:
        responder.fail(error)
    except Exception as another:
        text = f"an error could not be sent: {place(another)}"
        log.error(labelled(responder.request_id, text))


def _answerable(error: BaseException, request_id: str) -> Exception:
    if isinstance(error, RuntimeModelError):
        return error
    log.error(labelled(request_id, f"a request failed: {place(error)}"))
    # The text may quote the caller's: it goes to the caller alone.
    return EngineError(f"internal error: {type(error).__name__}: {reason(error)}")


def _outcome(error: BaseException) -> str:
    if isinstance(error, CancelledError):
        return "cancelled"
    return "refused" if isinstance(error, OverloadedError | RequestError) else "error"

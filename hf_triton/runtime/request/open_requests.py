"""Counts the requests of one engine between their arrival and their answer: each is admitted once
and ends once, whatever fails on the way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

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
from .responder import Responder


class Threads(Protocol):
    def shutdown(self) -> None:
        """Ends the threads after all queued work is done or given up."""


class Pool(Threads, Protocol):
    """Threads that run queued functions."""

    def submit(self, run: Callable[..., object], /, *arguments: Any) -> object:
        """Queues a function. Raises RuntimeError after ``shutdown``."""


class OpenRequests:
    """Admits at most ``max_queue_size`` open requests.

    ``on_end`` gets each one's outcome: ok, refused, cancelled or error; ``on_turned_away`` is
    called for each that was not admitted. Both are called by one thread at a time.
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
        """Counts a request and returns True, or answers it with the reason and returns False."""
        with self._changed:
            if not self._closing and self._num_open < self._max_queue_size:
                self._num_open += 1
                return True
            self._on_turned_away()
        refusal = f"the queue is full: {self._num_open} requests (max_queue_size)"
        if self._closing:
            refusal = "the model is being unloaded"
        _send_error(responder, OverloadedError(f"{refusal}: try again later"))
        return False

    def run_on(self, pool: Pool, responder: Responder, part: Callable[[], None]) -> None:
        """Runs a part of a request's work on a thread of ``pool``; on this one after its shutdown,
        when that part only answers that the model is being unloaded, and where no thread starts.
        """
        parts = [part]  # a pool that could start no thread keeps what it took, and runs it later

        def run() -> None:
            if parts:
                self.run(responder, parts.pop())

        try:
            pool.submit(run)
        except RuntimeError:
            run()

    def run(self, responder: Responder, part: Callable[[], None]) -> None:
        """Runs a part of a request's work; an error becomes the request's answer and ends it."""
        try:
            part()
        except BaseException as error:  # a panic in the Rust of tokenizers is no Exception
            self.fail(responder, error)

    def fail(self, responder: Responder, error: BaseException) -> None:
        outcome = "refused" if isinstance(error, OverloadedError | RequestError) else "error"
        outcome = "cancelled" if isinstance(error, CancelledError) else outcome
        if not isinstance(error, RuntimeModelError):
            log.error(f"a request failed: {place(error)}", responder.request_id)
            # The error's text may quote the request: it goes to the caller, not into the log.
            error = EngineError(f"internal error: {type(error).__name__}: {reason(error)}")
        _send_error(responder, error)
        self.end(outcome)

    def end(self, outcome: str = "ok") -> None:
        with self._changed:
            self._on_end(outcome)
            self._num_open -= 1
            self._changed.notify_all()

    def drain(self, grace_s: float) -> None:
        """Admits no more requests, and waits at most ``grace_s`` for the open ones to end."""
        with self._changed:
            self._closing = True
            deadline_s = time.monotonic() + grace_s
            while self._num_open and time.monotonic() < deadline_s:
                self._changed.wait(max(0.0, deadline_s - time.monotonic()))


def _send_error(responder: Responder, error: Exception) -> None:
    try:
        responder.fail(error)
    except Exception as another:
        text = f"an error could not be sent: {place(another)}"
        log.error(text, responder.request_id)

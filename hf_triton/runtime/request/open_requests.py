"""Counts the requests of one engine between their arrival and their answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from ..errors import CancelledError, OverloadedError, RequestError
from .request import Request
from .responder import EndingResponder, Responder, attempt


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

    def admit(self, request: Request) -> Request:
        """The request, counted until it is answered. Raises OverloadedError."""
        with self._changed:
            if self._closing or self._num_open >= self._max_queue_size:
                self._on_turned_away()
                full = f"the queue is full: {self._num_open} requests (max_queue_size)"
                refusal = "the model is being unloaded" if self._closing else full
                raise OverloadedError(f"{refusal}: try again later")
            self._num_open += 1
        return replace(request, responder=EndingResponder(request.responder, self._end))

    def drain(self, grace_s: float) -> None:
        """Admits no more requests, and waits at most ``grace_s`` for the open ones to end."""
        with self._changed:
            self._closing = True
            deadline_s = time.monotonic() + grace_s
            while self._num_open and time.monotonic() < deadline_s:
                self._changed.wait(max(0.0, deadline_s - time.monotonic()))

    def _end(self, error: Exception | None) -> None:
        outcome = "ok" if error is None else "error"
        outcome = "refused" if isinstance(error, OverloadedError | RequestError) else outcome
        outcome = "cancelled" if isinstance(error, CancelledError) else outcome
        with self._changed:
            self._on_end(outcome)
            self._num_open -= 1
            self._changed.notify_all()


def attempt_on(pool: Pool, responder: Responder, part: Callable[[], None]) -> None:
    """Attempts a part of a request's work on a thread of ``pool``; on this one after its shutdown,
    when that part only answers that the model is being unloaded, and where no thread starts.
    """
    parts = [part]  # a pool that could start no thread keeps what it took, and runs it later

    def run() -> None:
        if parts:
            attempt(responder, parts.pop())

    try:
        pool.submit(run)
    except RuntimeError:
        run()

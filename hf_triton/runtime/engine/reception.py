"""Takes requests in and follows them until they are answered, for engines that answer once.

A request is read on a thread of a pool and computed by the engine's, and answered from a pool
again; how, is the task's. Knows the engine only by its thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import Any

from hf_triton.runtime.engine.thread import EngineThread
from hf_triton.runtime.metrics.publishing import Family
from hf_triton.runtime.request.open_requests import OpenRequests, Threads
from hf_triton.runtime.request.plain_request import RequestLike
from hf_triton.runtime.request.responder import Responder


class PooledReception(ABC):
    """The open requests of one engine."""

    def __init__(
        self,
        thread: EngineThread[Any],
        pools: Iterable[Threads],
        requests: OpenRequests,
        *,
        description: str,
        unload_grace_s: float,
        tokenizer: Any = None,
    ) -> None:
        """``tokenizer`` where it reads texts."""
        self.tokenizer = tokenizer
        self.description, self.unload_grace_s = description, unload_grace_s
        self._thread, self._pools, self._requests = thread, tuple(pools), requests

    @property
    def is_healthy(self) -> bool:
        return self._thread.is_healthy

    @property
    def num_open(self) -> int:
        return len(self._requests)

    @abstractmethod
    def families(self) -> Iterable[Family]:
        """All metrics."""

    @abstractmethod
    def _accept(
        self,
        request: RequestLike,
        listed: frozenset[str],
        responder: Responder,
        *,
        may_stream: bool,
    ) -> None:
        """Starts a request; tensors must be read before it returns. An exception becomes the
        answer. ``may_stream`` is False where the caller can be answered only once.
        """

    def take(
        self, request: RequestLike, listed: Iterable[str], responder: Responder, *, may_stream: bool
    ) -> None:
        """Starts one request, or answers it with its error; never raises."""
        if self._requests.admit(responder):
            accept = partial(self._accept, request, frozenset(listed), responder)
            self._requests.run(responder, partial(accept, may_stream=may_stream))

    def stop(self, grace_s: float) -> None:
        """Takes no more, finishes what is here within ``grace_s``, answers the rest, and ends the
        threads once everything that they were given is done.
        """
        self._requests.drain(grace_s)
        self._thread.stop()
        for pool in self._pools:
            pool.shutdown()

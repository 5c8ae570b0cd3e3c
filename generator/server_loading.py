"""Loads models into a running server over HTTP, several at once.

Not by ``--load-model``: with that flag the server answers nobody until its slowest model is there,
and one that hangs keeps all others away. Knows no process.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from generator.server_api import ServerApi

# As many as Triton loads at once by default (--model-load-thread-count).
NUM_LOADERS = 4
_NUM_READY_TRIES = 10


@dataclass(frozen=True)
class Loaded:
    """How loading a model ended: ``failure`` is None, or the reason in one line."""

    model: str
    seconds: float
    failure: str | None


class ModelLoader:
    """The loads of one server: how many are under way, which models are ready."""

    def __init__(self, api: ServerApi) -> None:
        self.num_loading = 0
        self.ready: set[str] = set()
        self._api = api
        self._outcomes: queue.SimpleQueue[Loaded] = queue.SimpleQueue()

    def begin(self, models: Iterable[str]) -> None:
        """Starts to load models; ``next_outcome`` tells how each ended."""
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for model in models:
            waiting.put(model)
            self.num_loading += 1
        for _ in range(min(NUM_LOADERS, waiting.qsize())):
            threading.Thread(target=self._load_each, args=(waiting,), daemon=True).start()

    def next_outcome(self, timeout_s: float) -> Loaded | None:
        """The next model whose load has ended; None where none has within ``timeout_s``."""
        try:
            outcome = self._outcomes.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self.num_loading -= 1
        if outcome.failure is None:
            self.ready.add(outcome.model)
        return outcome

    def _load_each(self, waiting: queue.SimpleQueue[str]) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                model = waiting.get_nowait()
                began = time.monotonic()
                failure = self._load(model)
                self._outcomes.put(Loaded(model, time.monotonic() - began, failure))

    def _load(self, model: str) -> str | None:
        """The reason in one line where it fails."""
        try:
            failure = self._api.load(model)
            ready = failure is None and self._is_ready(model)
        except OSError:
            return "the server went away"
        if failure is None:
            return None if ready else "loaded, but not ready"
        return failure.removeprefix(f"{model}: ")

    def _is_ready(self, model: str) -> bool:
        """Asks again where no answer comes: a load keeps one of the server's HTTP threads busy, and
        a connection that lands on it waits as long.
        """
        for _ in range(_NUM_READY_TRIES - 1):
            with contextlib.suppress(TimeoutError):
                return self._api.is_model_ready(model)
        return self._api.is_model_ready(model)

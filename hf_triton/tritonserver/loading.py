"""Loads models into a running server, several at once.

Not by ``--load-model``: with that flag the server answers no request until its slowest model is
loaded, and one that hangs blocks all others. A streaming entry is two Triton models, an engine and
the front with the entry's name: they are loaded one after the other, and reported as one. Triton
itself loads an ensemble's steps, in parallel, before the ensemble. Knows no process.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from generator.errors import GeneratorError, ServerError
from hf_triton.tritonserver.http_api import ServerApi, patiently
from hf_triton.tritonserver.triton_texts import READY

SERVER_WENT_AWAY = "the server went away"
NOT_READY = "loaded, but not ready"
# As many as Triton loads at once by default (--model-load-thread-count).
NUM_LOADERS = 4

Lock = Callable[[str], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True)
class Loaded:
    """How loading a model ended: ``failure`` is None, or the reason in one line. One that is loaded
    may say that it is not ready, which is nobody's failure and may pass.
    """

    model: str
    seconds: float
    failure: str | None
    is_ready: bool

    @property
    def is_of_server(self) -> bool:
        """Whether it failed because the server went away."""
        return self.failure == SERVER_WENT_AWAY


class ModelLoader:
    """The loads of one server: how many are under way, which models are loaded.

    ``engine_of`` gives the engine of a model that is a front, None of any other; ``steps_of`` the
    steps of one that is an ensemble.
    """

    def __init__(
        self,
        api: ServerApi,
        engine_of: Callable[[str], str | None] = lambda _model: None,
        steps_of: Callable[[str], Sequence[str]] = lambda _model: (),
    ) -> None:
        self.num_loading = 0
        self.ready: set[str] = set()
        self._api = api
        self._engine_of = engine_of
        self._steps_of = steps_of
        self._outcomes: queue.SimpleQueue[Loaded] = queue.SimpleQueue()

    def begin(self, models: Iterable[str], locked: Lock = contextlib.nullcontext) -> None:
        """Starts to load models, each front's engine with it; ``next_outcome`` tells of each.
        ``locked`` keeps others from changing a model while it is loaded.
        """
        models = list(models)
        parts = {part for one in models for part in (self._engine_of(one), *self._steps_of(one))}
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for model in models:
            if model in parts:
                continue  # comes with the model that it is a part of
            waiting.put(model)
            self.num_loading += 1
        for _ in range(min(NUM_LOADERS, waiting.qsize())):
            threading.Thread(target=self._load_each, args=(waiting, locked), daemon=True).start()

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

    def _load_each(self, waiting: queue.SimpleQueue[str], locked: Lock) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                model = waiting.get_nowait()
                began = time.monotonic()
                try:
                    with locked(model):
                        failure = self._load_with_engine(model)
                except GeneratorError as error:
                    failure = str(error)
                is_ready = failure is None and self._is_ready(model)
                seconds = time.monotonic() - began
                self._outcomes.put(Loaded(model, seconds, failure, is_ready))

    def _load_with_engine(self, model: str) -> str | None:
        """Loads a model, after its engine where that is another one, and without it not at all."""
        engine = self._engine_of(model)
        failure = self._load(engine) if engine else None
        failure = failure or self._load(model)
        return failure and failure.removeprefix(f"{engine}: ").removeprefix(f"{model}: ")

    def _load(self, model: str) -> str | None:
        """The reason in one line where it fails."""
        try:
            failure = self._api.load(model)
            # Triton reports success for an ensemble whose step failed.
            if failure is None and not self._is_loaded(model):
                return NOT_READY
        except (OSError, ServerError):
            return SERVER_WENT_AWAY
        return failure

    def _is_loaded(self, model: str) -> bool:
        index = patiently(self._api.index)
        return any(entry.model == model and entry.state == READY for entry in index)

    def _is_ready(self, model: str) -> bool:
        try:
            return patiently(partial(self._api.is_model_ready, model))
        except OSError:
            return False

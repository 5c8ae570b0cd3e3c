"""Loads models: at the start, on demand, and again after their Python processes died.

A folder is loaded under its lock: an apply that holds it goes first, and may have loaded the model.
Where a load fails, the model's state says whether it is tried again, and when. Each model that is
brought back has a thread of its own, so that others are not delayed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from generator.errors import GeneratorError
from generator.repository.writing import locked_model
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.serving.supervision.stub_deaths import Death, StubDeaths
from hf_triton.tritonserver.http_api import NUM_LOADERS, ServerApi
from hf_triton.tritonserver.model_state import Cause, ModelStates, State
from hf_triton.tritonserver.stubs import Stub
from hf_triton.tritonserver.system_calls import start_thread, start_threads

_KILLED_WITHIN_S = 3.0  # a process that was killed has given its memory back by then
_NUM_LOG_LINES = 8
TRIED_AGAIN_S = 1.0
_POLL_S = 0.1
_NOT_READY = "loaded, but not ready"  # Triton reports success for an ensemble whose step failed

Pids = frozenset[int]
T = TypeVar("T")


class ModelLoader:
    """Loads the models of one server. ``say`` prints a line; ``log_tail`` returns the last lines of
    the server's log.
    """

    def __init__(
        self,
        server: ServerApi,
        deaths: StubDeaths,
        served: ServedModels,
        states: ModelStates,
        say: Callable[[str], None],
        log_tail: Callable[[], list[str]] = list,
    ) -> None:
        self._server, self._deaths, self._served, self._states = server, deaths, served, states
        self._say, self._log_tail = say, log_tail
        self._lock = threading.Lock()
        self._reasons: dict[str, tuple[Cause, str]] = {}  # of deaths to come
        self._loading = set[str]()  # folders
        self._threads = Counter[str]()  # that bring a folder back
        self.server_started()

    def server_started(self) -> None:
        """The server has no model yet."""
        self._ended = threading.Event()  # of the server that the threads work on
        self.has_deaths = False

    def begin(self, models: Sequence[str]) -> None:
        """Starts to load entries, several at once; their states tell how each ends."""
        for model in models:
            for state in self._states.of(self._served.folders(model)):
                state.load()
        work = partial(self._load_each, iter([*models]), time.monotonic(), self._ended)
        start_threads(work, min(NUM_LOADERS, len(models)))

    def look(self, sweep: bool = False, find: bool = False) -> None:
        """Starts to reload the models whose processes have died since the last call."""
        for death in self._deaths.look(sweep, find):
            self.has_deaths = True
            if not self._states[death.folder].in_hand:
                cause, reason = self._reasons.pop(death.folder, (death.cause, death.reason))
                self._states[death.folder].died(cause, reason)
                work = partial(self._bring_back, death)
                try:
                    start_thread(self._run, death.folder, work, self._ended)
                except OSError:  # the next sweep tries again
                    self._states[death.folder].ready()

    @property
    def stubs(self) -> frozenset[Stub]:
        """The models' processes, as of about a second ago."""
        return self._deaths.known

    def end_processes(self, folder: str, cause: Cause, reason: str) -> None:
        """Kills the processes of a model that no longer answers; ``look`` then reloads it."""
        self._reasons[folder] = cause, reason
        self.kill(folder, self.living(folder))

    def living(self, folder: str) -> Pids:
        return self._deaths.living(folder)

    def kill(self, folder: str, pids: Pids) -> None:
        """Kills processes, those that the model still has: others may have their numbers by now."""
        for pid in pids & self.living(folder) if pids else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Stops all loads, because the server is being stopped or has died. Kills processes that
        are loading: a stopping server would wait for them.
        """
        with self._lock:
            self._ended.set()
            loading, self._loading = self._loading, set()
        for folder in loading:
            self.kill(folder, self.living(folder))

    def _run(
        self, folder: str, work: Callable[[threading.Event], None], ended: threading.Event
    ) -> None:
        with self._lock:
            self._threads[folder] += 1
        try:
            work(ended)
        finally:
            with self._lock:
                self._threads[folder] -= 1

    def _load_each(self, models: Iterator[str], since_s: float, ended: threading.Event) -> None:
        for model in models:
            if ended.is_set():
                return
            delay_s = self._load_once(model, since_s, ended)
            if delay_s is not None:
                again = partial(self._load_again, model, delay_s)
                start_threads(partial(self._run, model, again, ended), 1)

    def _bring_back(self, death: Death, ended: threading.Event) -> None:
        folder = death.folder

        def unload() -> float | None:
            """Seconds until it is loaded; None of one that is no longer dead. Triton never answers
            the requests of the process that died, and so keeps the model's other processes: they
            are ended, and the ports send their requests again too.
            """
            with locked_model(self._served.repository / folder):
                if ended.is_set() or not self._deaths.is_dead(death):
                    return None
                self._server.unload(folder)
                self.kill(folder, death.survivors)
                deadline = time.monotonic() + _KILLED_WITHIN_S
                while death.survivors & self.living(folder) and time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                return self._states[folder].count_death()

        delay_s = self._tried(unload, folder, ended)
        if delay_s is not None:
            self._load_again(folder, delay_s, ended)
        elif not ended.is_set():
            self._states[folder].ready()  # another client has loaded it

    def _load_again(self, folder: str, first_s: float, ended: threading.Event) -> None:
        delay_s: float | None = first_s
        while delay_s is not None and not ended.is_set():
            told = self._states[folder].tell_retry(delay_s)
            self._say(f"model '{self._model_of(folder)}': {told}")
            if ended.wait(delay_s):
                return
            delay_s = self._load_once(folder, time.monotonic(), ended)

    def _load_once(self, folder: str, since_s: float, ended: threading.Event) -> float | None:
        """Seconds until the next try; None where it is ready or lost, or the server ended."""
        began_s = time.monotonic()
        failure = self._tried(partial(self._load, folder, ended), folder, ended)
        if ended.is_set():
            return None
        if failure is None:
            self._note_loaded(folder, time.monotonic() - since_s)
            return None
        # A part that a thread of its own reloads fails by itself.
        parts = [one for one in self._parts(folder) if not self._threads[one]]
        cause, reason = self._deaths.of_load(failure, [*parts, folder], began_s)
        delay_s = self._states.load_failed([*parts, folder], cause, reason)
        if delay_s is None:
            self._tell_lost(folder)
        return delay_s

    def _tried(self, step: Callable[[], T], folder: str, ended: threading.Event) -> T | None:
        """Returns the result of ``step``, or None where the server ends first. Tries again if it
        fails for something else than the model: a server too busy to answer, no free descriptor.
        """
        said = ""
        while not ended.is_set():
            try:
                return step()
            except OSError:
                pass  # where the server went away, that is noticed elsewhere
            except GeneratorError as error:
                if str(error) != said:
                    said = str(error)
                    self._say(f"model '{self._model_of(folder)}': {error}")
            ended.wait(TRIED_AGAIN_S)
        return None

    def _load(self, folder: str, ended: threading.Event) -> str | None:
        """Loads a folder: before a front its engine, after a step its ensemble, if Triton has not
        loaded that itself; the reason in one line where it fails.
        """
        model = self._model_of(folder)
        for part in self._served.load_order(model) if folder == model else [folder]:
            failure = self._load_one(part, ended)
            if failure is not None:
                return failure
        ready = self._ready()
        if self._served.model_of(folder) is None or model in ready:
            return None
        if folder == model:
            return _NOT_READY
        steps_are_ready = {*self._served.folders(model)} - {model} <= ready
        return self._load_one(model, ended) if steps_are_ready else None

    def _load_one(self, folder: str, ended: threading.Event) -> str | None:
        """Also returns None if another client has loaded it, or it is no longer to be served."""
        with locked_model(self._served.repository / folder):
            if self._served.model_of(folder) is None or folder in self._ready():
                return None
            with self._lock:
                if ended.is_set():
                    return "the server is being stopped"
                self._loading.add(folder)
            try:
                failure = self._server.load(folder)
            finally:
                with self._lock:
                    self._loading.discard(folder)
        return failure and failure.removeprefix(f"{folder}: ")

    def _note_loaded(self, folder: str, seconds: float) -> None:
        model, parts = self._served.model_of(folder), self._parts(folder)
        own = [folder, *(one for one in parts if not self._threads[one])]
        for one in own:  # of processes that were killed while they loaded
            self._reasons.pop(one, None)
        if model is None:
            for one in own:
                self._states[one].unloaded()
            return
        how = "ready" + " again" * self._states[folder].was_ready
        with contextlib.suppress(OSError):
            # Triton asks models from 26.03 on; one that says no has not failed.
            if not self._server.is_model_ready(folder):
                how = "loaded, but says that it is not ready,"
        for one in own:
            self._states[one].ready()
        self._say(f"{model} is {how} after {seconds:.1f} s")

    def _tell_lost(self, folder: str) -> None:
        state, model = self._states[folder], self._model_of(folder)
        if state.state is not State.GIVEN_UP:
            self._say(f"model '{model}' {state.told}")
            return
        lines = [f"\n    {line}" for line in self._log_tail()[-_NUM_LOG_LINES:]]
        self._say(
            f"model '{model}': {state.told}. The other models stay served. Correct it (smaller "
            "caches, more memory, another model) and run `hf-triton apply`, or start serve again. "
            f"The log's last lines:{''.join(lines)}"
        )

    def _parts(self, folder: str) -> Sequence[str]:
        """The other folders of an entry, if this folder is the one that stands for it."""
        return self._served.folders(folder)[:-1] if folder == self._model_of(folder) else []

    def _ready(self) -> set[str]:
        return {model for model, _ in self._server.ready_versions()}

    def _model_of(self, folder: str) -> str:
        return self._served.model_of(folder) or folder

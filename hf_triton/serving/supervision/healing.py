"""Reloads Triton models whose Python processes died, and gives up those that don't load any more.

Each model is reloaded on a thread of its own, so that others are not delayed. A model is changed
only under its lock: an apply that holds it goes first, and may have reloaded the model.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from generator.errors import GeneratorError
from generator.repository.writing import locked_model
from hf_triton.serving.supervision import processes
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.serving.supervision.stub_deaths import Death, StubDeaths
from hf_triton.tritonserver.http_api import ModelVersion
from hf_triton.tritonserver.model_state import Cause, ModelState, ModelStates
from hf_triton.tritonserver.restart_policy import times
from hf_triton.tritonserver.stubs import Stub
from hf_triton.tritonserver.triton_texts import READY

# The other processes of an unloaded model end at once, unless they still answer requests: they may,
# as long as there is memory for the new processes beside them.
_SURVIVORS_END_S = 3.0
_SURVIVORS_MAY_ANSWER_S = 30.0
_NUM_LOG_LINES = 8
_TRIED_AGAIN_S = 1.0

T = TypeVar("T")


class Server(Protocol):
    """The calls to a server. Each raises OSError if it can't be reached."""

    def index(self) -> list[ModelVersion]: ...
    def load(self, name: str) -> str | None: ...
    def unload(self, name: str) -> str | None: ...


class Healer:
    """Reloads models of one server. ``say`` prints a line; ``log_tail`` returns the last lines of
    the server's log.
    """

    def __init__(
        self,
        server: Server,
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
        self._loading: dict[str, frozenset[int]] = {}  # folder -> processes that are not loading
        self._threads = Counter[str]()  # by folder
        self._ended = threading.Event()  # of the server that the threads work on
        self.has_deaths = False

    def look(self, sweep: bool = False, find: bool = False) -> None:
        """Starts to reload the models whose processes have died since the last call."""
        for death in self._deaths.look(sweep, find):
            self.has_deaths = True
            if not self._states[death.folder].in_hand:
                cause, reason = self._reasons.pop(death.folder, (death.cause, death.reason))
                self._states[death.folder].died(cause, reason)
                self._begin(death.folder, partial(self._bring_back, death))

    @property
    def stubs(self) -> frozenset[Stub]:
        """The models' processes, as of about a second ago."""
        return self._deaths.known

    def living(self, folder: str) -> frozenset[int]:
        """The processes that a model has now."""
        return self._deaths.living(folder)

    def load_failed(self, failure: str, folders: Sequence[str], began_s: float) -> float | None:
        """Notes it of folders that are loaded together, the public one last; the seconds until they
        are loaded again, None where they are not.
        """
        folders = [one for one in folders if one == folders[-1] or not self._threads[one]]
        cause, text = self._deaths.of_load(failure, folders, began_s)
        return self._states.load_failed(folders, cause, f"failed to load: {text}")

    def end_processes(self, folder: str, cause: Cause, reason: str) -> None:
        """Kills the processes of a model that no longer answers; ``look`` then reloads it."""
        self._reasons[folder] = cause, reason
        living = self._deaths.living
        processes.kill(living, folder, living(folder))

    def bring_back(self, model: str, delay_s: float | None) -> None:
        """Starts to load a model that failed to load after the server was restarted."""
        lost = Death(model, "", Cause.LOAD_FAILED, "", frozenset())
        if delay_s is None:
            self._give_up(model)
        else:
            self._begin(model, partial(self._load_again, lost, delay_s))

    def _begin(self, folder: str, work: Callable[[threading.Event], None]) -> None:
        thread = threading.Thread(target=self._run, args=(folder, work, self._ended), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are too many on this machine: the next sweep tries again
            self._states[folder].ready()

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

    def end(self) -> None:
        """Stops all reloads, because the server is being stopped or has died. Kills processes that
        are loading: a stopping server would wait for them.
        """
        with self._lock:
            self._ended.set()
            loading, self._loading = self._loading, {}
        for folder, survivors in loading.items():
            living = self._deaths.living
            processes.kill(living, folder, living(folder) - survivors)

    def begin(self) -> None:
        """Starts again, after the server was restarted with all its models."""
        self._ended = threading.Event()
        self.has_deaths = False

    def _bring_back(self, death: Death, ended: threading.Event) -> None:
        delay_s = self._tried(partial(self._unload, death, ended), death, ended)
        if delay_s is not None:
            self._load_again(death, delay_s, ended)
        elif not ended.is_set():
            self._states[death.folder].ready()  # somebody else has loaded it

    def _unload(self, death: Death, ended: threading.Event) -> float | None:
        """Unloads a model that is still dead; the seconds until it is loaded, None of another."""
        with self._locked(death.folder):
            if ended.is_set() or not self._deaths.is_dead(death):
                return None
            self._server.unload(death.folder)
            return self._states[death.folder].count_death(others_live=bool(death.survivors))

    def _tried(self, step: Callable[[], T], death: Death, ended: threading.Event) -> T | None:
        """What ``step`` returns; None where the server ends first. Tried again where it fails for
        something else than the model: the server is too busy to answer, no file can be opened.
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
                    self._say(f"model '{self._model_of(death.folder)}': {error}")
            ended.wait(_TRIED_AGAIN_S)
        return None

    def _load_again(self, death: Death, first_s: float, ended: threading.Event) -> None:
        state = self._states[death.folder]
        delay_s: float | None = first_s
        while delay_s is not None:
            self._tell(death.folder, state, delay_s, ended)
            if ended.wait(delay_s):
                return
            began = time.monotonic()
            failure = self._tried(partial(self._load, death, ended), death, ended)
            if ended.is_set():
                return
            if failure is None:
                self._note_loaded(death.folder, time.monotonic() - began)
                return
            folders = [*self._parts(death.folder), death.folder]
            delay_s = self.load_failed(failure, folders, began)
        self._give_up(death.folder)

    def _load(self, death: Death, ended: threading.Event) -> str | None:
        """Loads a model; returns None, or the reason in one line if it fails. None also if somebody
        else has loaded it, or it is not to be served any more.
        """
        folder, survivors, living = death.folder, death.survivors, self._deaths.living
        with self._locked(folder):
            processes.wait_for_end(living, folder, survivors, _SURVIVORS_END_S)
            if self._served.model_of(folder) is None or folder in self._ready():
                return None
            failure = self._load_parts(death, ended)
        if failure is not None:
            processes.kill(living, folder, survivors)  # there may be no room beside them
        elif survivors:
            # Triton never answers the requests of the process that died, and so keeps the old
            # version and its other processes: they are killed later.
            arguments = (living, folder, survivors, _SURVIVORS_MAY_ANSWER_S)
            threading.Thread(target=processes.end_later, args=arguments, daemon=True).start()
        return failure

    def _load_parts(self, death: Death, ended: threading.Event) -> str | None:
        """Loads a folder: before a front its engine, if that is not ready; after a step its
        ensemble, if Triton has not loaded that itself.
        """
        folder = death.folder
        model = self._model_of(folder)
        parts = self._served.folders(model)
        ready = self._ready()
        wanted = [part for part in parts if part not in ready] if folder == model else [folder]
        for part in wanted:
            failure = self._load_one(part, death.survivors, ended)
            if failure is not None:
                return failure
        ready = self._ready()
        if model in ready or not set(parts) - {model} <= ready:
            return None
        return self._load_one(model, frozenset(), ended)

    def _load_one(
        self, folder: str, survivors: frozenset[int], ended: threading.Event
    ) -> str | None:
        with self._lock:
            if ended.is_set():
                return "the server is being stopped"
            self._loading[folder] = survivors
        try:
            failure = self._server.load(folder)
        finally:
            with self._lock:
                self._loading.pop(folder, None)
        return None if failure is None else failure.removeprefix(f"{folder}: ")

    def _tell(self, folder: str, state: ModelState, delay_s: float, ended: threading.Event) -> None:
        when = f" in {delay_s:g} s" if delay_s else ""
        text = f"{state.reason}; it is loaded again{when} ({state.restarts.count})"
        if not ended.is_set():
            state.reason = text
            self._say(f"model '{self._model_of(folder)}': {text}")

    def _note_loaded(self, folder: str, seconds: float) -> None:
        model = self._served.model_of(folder)
        if model is None:
            self._states[folder].unloaded()
            return
        self._states[folder].ready(is_restart=True)
        for part in self._parts(folder):
            if not self._threads[part]:  # then what Triton says of it counts
                self._states[part].in_hand = False
        self._say(f"model '{model}' is back after {seconds:.1f} s")

    def _give_up(self, folder: str) -> None:
        state, model = self._states[folder], self._model_of(folder)
        num = state.restarts.num_failed
        state.reason += f"; given up after {times(num, 'failed load')} in a row"
        lines = [f"\n    {line}" for line in self._log_tail()[-_NUM_LOG_LINES:]]
        self._say(
            f"model '{model}': {state.reason}. The others are served on. Correct it (smaller "
            "caches, more memory, another model) and run `hf-triton apply`, or start serve again. "
            f"The log's last lines:{''.join(lines)}"
        )

    def _parts(self, folder: str) -> list[str]:
        """Those that come with a folder that stands for an entry."""
        return self._served.folders(folder)[:-1] if folder == self._model_of(folder) else []

    def _ready(self) -> set[str]:
        return {entry.model for entry in self._server.index() if entry.state == READY}

    def _model_of(self, folder: str) -> str:
        return self._served.model_of(folder) or folder

    def _locked(self, folder: str) -> contextlib.AbstractContextManager[None]:
        return locked_model(Path(self._served.repository) / folder)

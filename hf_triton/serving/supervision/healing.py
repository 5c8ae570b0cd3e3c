"""Reloads Triton models whose Python processes died, and gives up those that don't load any more.

Each model is reloaded on a thread of its own, so that others are not delayed. A model is changed
only under its lock: an apply that holds it goes first, and may have reloaded the model.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from generator.errors import GeneratorError
from generator.repository.writing import locked_model
from hf_triton.serving.supervision import processes
from hf_triton.serving.supervision.health import Health
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.serving.supervision.stub_deaths import Death, StubDeaths
from hf_triton.tritonserver.http_api import ModelVersion
from hf_triton.tritonserver.restart_policy import RestartPolicy, Restarts, times
from hf_triton.tritonserver.stubs import Stub

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
        health: Health,
        policy: RestartPolicy,
        say: Callable[[str], None],
        log_tail: Callable[[], list[str]] = list,
    ) -> None:
        self._server, self._deaths, self._served, self._health = server, deaths, served, health
        self._policy, self._say, self._log_tail = policy, say, log_tail
        self._restarts: dict[str, Restarts] = {}
        self._lock = threading.Lock()
        self._healing: dict[str, str] = {}  # folder -> why it is not ready
        self._given_up: dict[str, str] = {}
        self._reasons: dict[str, str] = {}  # of deaths to come
        self._loading: dict[str, frozenset[int]] = {}  # folder -> processes that are not loading
        self._ended = threading.Event()  # of the server that the threads work on
        self.has_deaths = False
        self.deaths: dict[str, tuple[int, Death]] = {}  # folder -> how many, and the last one

    def look(self, sweep: bool = False) -> None:
        """Starts to reload the models whose processes have died since the last call."""
        for death in self._deaths.look(sweep):
            self.has_deaths = True
            with self._lock:
                reason = self._reasons.pop(death.folder, death.reason)
            death = replace(death, reason=reason)
            self._begin(death, partial(self._bring_back, death))

    @property
    def stubs(self) -> frozenset[Stub]:
        """The models' processes, as of about a second ago."""
        return self._deaths.known

    def living(self, folder: str) -> frozenset[int]:
        """The processes that a model has now."""
        return self._deaths.living(folder)

    def end_processes(self, folder: str, reason: str) -> None:
        """Kills the processes of a model that no longer answers; ``look`` then reloads it."""
        with self._lock:
            self._reasons[folder] = reason
        living = self._deaths.living
        processes.kill(living, folder, living(folder))

    def bring_back(self, model: str, failure: str) -> None:
        """Starts to load a model that failed to load after the server was restarted."""
        lost = Death(model, "", f"failed to load: {failure}", frozenset())
        self._begin(lost, partial(self._load_after_failure, lost))

    def _begin(self, death: Death, work: Callable[[threading.Event], None]) -> None:
        with self._lock:
            if death.folder in self._healing:
                return
            self._healing[death.folder] = death.reason
            self._given_up.pop(death.folder, None)
            ended = self._ended
        thread = threading.Thread(target=self._heal, args=(death, work, ended), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are too many on this machine: the next sweep tries again
            with self._lock:
                self._healing.pop(death.folder, None)

    def reasons(self) -> dict[str, str]:
        """For each Triton model that is being reloaded or was given up: why it is not ready."""
        with self._lock:
            return {**self._given_up, **self._healing}

    def given_up(self) -> set[str]:
        """The Triton models that are not reloaded any more."""
        with self._lock:
            return set(self._given_up)

    def healing(self) -> set[str]:
        """The Triton models that are being reloaded."""
        with self._lock:
            return set(self._healing)

    def is_healing(self) -> bool:
        """Whether any model is being reloaded."""
        with self._lock:
            return bool(self._healing)

    def on_ready(self, folders: Iterable[str]) -> None:
        """Forgets that a model was given up, once somebody else has loaded it."""
        with self._lock:
            revived = self._given_up.keys() & set(folders)
            for folder in revived:
                del self._given_up[folder]
                self._restarts.pop(folder, None)  # it may be another model by now
        for folder in revived:
            self._health.set_given_up(self._model_of(folder), False)

    def end(self) -> None:
        """Stops all reloads, because the server is being stopped or has died. Kills processes that
        are loading: a stopping server would wait for them.
        """
        with self._lock:
            self._ended.set()
            loading, self._loading = self._loading, {}
            self._healing.clear()
        for folder, survivors in loading.items():
            living = self._deaths.living
            processes.kill(living, folder, living(folder) - survivors)

    def begin(self) -> None:
        """Starts again, after the server was restarted with all its models."""
        self._ended = threading.Event()
        self.has_deaths = False

    def _heal(
        self, death: Death, work: Callable[[threading.Event], None], ended: threading.Event
    ) -> None:
        try:
            work(ended)
        finally:
            with self._lock:
                if not ended.is_set():  # else it may be another thread's by now
                    self._healing.pop(death.folder, None)

    def _bring_back(self, death: Death, ended: threading.Event) -> None:
        if self._tried(partial(self._unload, death, ended), death, ended):
            restarts = self._restarts_of(death.folder)
            self._load_again(death, restarts, restarts.died(), ended)

    def _unload(self, death: Death, ended: threading.Event) -> bool:
        """Whether the model is still dead, and was unloaded."""
        with self._locked(death.folder):
            if ended.is_set() or not self._deaths.is_dead(death):
                return False
            self._count(death)
            self._server.unload(death.folder)
            self._health.died(self._model_of(death.folder))
            return True

    def _count(self, death: Death) -> None:
        """Once, though the server may be too busy to unload it at first."""
        num, last = self.deaths.get(death.folder, (0, None))
        if last is not death:
            self.deaths[death.folder] = (num + 1, death)

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

    def _load_after_failure(self, lost: Death, ended: threading.Event) -> None:
        restarts = self._restarts_of(lost.folder)
        self._load_again(lost, restarts, restarts.failed(), ended)

    def _restarts_of(self, folder: str) -> Restarts:
        return self._restarts.setdefault(folder, Restarts(self._policy))

    def _load_again(
        self, death: Death, restarts: Restarts, delay_s: float | None, ended: threading.Event
    ) -> None:
        reason = death.reason
        while delay_s is not None:
            self._tell(death.folder, reason, delay_s, restarts, ended)
            if ended.wait(delay_s):
                return
            began = time.monotonic()
            failure = self._tried(partial(self._load, death, ended), death, ended)
            if ended.is_set():
                return
            if failure is None:
                restarts.lives()
                self._report_loaded(death.folder, time.monotonic() - began)
                return
            reason = f"failed to load: {failure}"
            delay_s = restarts.failed()
        self._give_up(death.folder, reason, restarts)

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

    def _tell(
        self, folder: str, reason: str, delay_s: float, restarts: Restarts, ended: threading.Event
    ) -> None:
        when = f" in {delay_s:g} s" if delay_s else ""
        text = f"{reason}; it is loaded again{when} ({restarts.count})"
        with self._lock:
            if ended.is_set():
                return  # what is written here now nobody takes back
            self._healing[folder] = text
        self._say(f"model '{self._model_of(folder)}': {text}")

    def _report_loaded(self, folder: str, seconds: float) -> None:
        model = self._model_of(folder)
        self._health.restarted(model)
        self._health.set_given_up(model, False)
        self._say(f"model '{model}' is back after {seconds:.1f} s")

    def _give_up(self, folder: str, reason: str, restarts: Restarts) -> None:
        model = self._model_of(folder)
        text = f"{reason}; given up after {times(restarts.num_failed, 'failed load')} in a row"
        with self._lock:
            self._given_up[folder] = text
        self._health.set_given_up(model, True)
        lines = [f"\n    {line}" for line in self._log_tail()[-_NUM_LOG_LINES:]]
        self._say(
            f"model '{model}': {text}. The others are served on. Correct it (smaller caches, more "
            "memory, another model) and run `hf-triton apply`, or start serve again. The log's "
            f"last lines:{''.join(lines)}"
        )

    def _ready(self) -> set[str]:
        return {entry.model for entry in self._server.index() if entry.state == "READY"}

    def _model_of(self, folder: str) -> str:
        return self._served.model_of(folder) or folder

    def _locked(self, folder: str) -> contextlib.AbstractContextManager[None]:
        return locked_model(Path(self._served.repository) / folder)

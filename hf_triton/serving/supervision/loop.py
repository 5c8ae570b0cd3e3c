"""Supervises a started server: loads its models, and checks four times a second whether a process
has died. Never returns by itself; knows neither signals nor how the server is stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from generator.errors import ServerError
from generator.models_yaml.server_settings import OnDemand
from hf_triton.ports.repeats import Model, Models
from hf_triton.serving.apply.file_watch import WatchedFiles
from hf_triton.serving.supervision.children import Children
from hf_triton.serving.supervision.hang_detection.server_answers import ServerAnswers
from hf_triton.serving.supervision.hang_detection.unready_models import UnreadyModels
from hf_triton.serving.supervision.hang_watch import HangWatch
from hf_triton.serving.supervision.healing import Healer
from hf_triton.serving.supervision.health import Health
from hf_triton.serving.supervision.messages import (
    counted,
    print_curl_lines,
    say,
    tell_loaded,
    tell_serving,
)
from hf_triton.serving.supervision.on_demand.control import OnDemandModels
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.serving.supervision.server_restarts import ServerRestarts
from hf_triton.tritonserver.http_api import PROCESS_DIED, ServerApi
from hf_triton.tritonserver.loading import SERVER_WENT_AWAY, Loaded
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.restart_policy import RestartPolicy

_LOOK_EVERY_S = 0.25
_EXIT_S = 2.0
_ASK_EVERY_S = 1.0
_ANSWER_TIMEOUT_S = 2.0
_SWEEP_EVERY_S = 1.0
_REMIND_EVERY_S = 10.0
_COUNT_LEFTOVERS_EVERY_S = 10.0
# So long may requests in flight take where a server is renewed.
_RENEW_AFTER_S = 10.0
_LOADING = "is being loaded"


@dataclass(frozen=True)
class ServeOptions:
    """How to serve. ``config`` is the path of models.yaml, for the state file. ``drain_s`` is the
    time from the signal to the stop, during which the server is not ready. ``watched`` files are
    applied whenever they change. ``on_demand`` says how models share memory that are not always
    loaded.
    """

    config: Path
    load_timeout_s: float | None = None
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    drain_s: float = 0.0
    watched: WatchedFiles | None = None
    on_demand: OnDemand = field(default_factory=OnDemand)


class Supervisor:
    """Supervises one server and its models."""

    def __init__(
        self,
        server: TritonServer,
        served: ServedModels,
        health: Health,
        healer: Healer,
        options: ServeOptions,
        children: Children,
    ) -> None:
        self._server, self._served, self._health = server, served, health
        self._healer, self._options, self._children = healer, options, children
        self._api = with_short_timeout(server.api)
        self._unready = UnreadyModels(self._api)
        self._asking: threading.Thread | None = None
        self._answers = ServerAnswers(self._api)
        self._hangs = HangWatch(server, self._answers, healer, children, health, say)
        tell_why: Callable[[str], None] = partial(health.enter, "restarting")
        self._restarts = ServerRestarts(server, options.policy, tell_why, self._wait_without_server)
        self._on_demand = OnDemandModels(server, served, healer, options.on_demand, say)
        self._has_served = False  # whether the first load is over, with something to show for it
        self._were_ready: set[str] = set()  # of those that serve has loaded
        self._seen_ready: set[str] = set()  # whoever has loaded them
        self._by_hand: set[str] = set()  # those with load: manual that somebody has loaded
        self._failures: dict[str, str] = {}
        self._loading: list[str] = []
        self._tried_twice: set[str] = set()  # of those whose process died in its first load
        self._folders: dict[str, list[str]] = {}
        self._server_deaths, self._server_why = 0, ""
        self._deaths_then: dict[str, int] = {}  # of folders, when the server died last
        self._states: dict[str, str] | None = None  # folder -> "" where it is ready, or why not
        self._ask_at_s = self._sweep_at_s = 0.0
        self._tell_lack_at_s = self._count_leftovers_at_s = 0.0

    @property
    def has_served(self) -> bool:
        """Whether any model was ready once all had been loaded."""
        return self._has_served

    def run(self) -> NoReturn:
        """Looks after what ``begin_to_load`` began. Raises ServerError if no model is left to
        serve, or a server that has never served dies too often.
        """
        while True:
            outcome = self._server.loader.next_outcome(_LOOK_EVERY_S)
            try:
                self._supervise(outcome)
            except OSError as error:
                self._note_lack(error)

    def _supervise(self, outcome: Loaded | None) -> None:
        # A load that breaks off is sooner than the end of the process that it broke off with.
        has_gone = bool(outcome and outcome.failure == SERVER_WENT_AWAY)
        if self._server.exit_code(_EXIT_S if has_gone else 0.0) is not None:
            words = self._server.exit_message("tritonserver died")
            self._server_deaths += 1
            self._server_why = words.partition(";")[0]
            self._deaths_then = {folder: num for folder, (num, _) in self._healer.deaths.items()}
            self._restart(words)
            return
        if outcome:
            self._take(outcome)
        self._look()
        self._children.revive(self._health, say)

    def _note_lack(self, error: OSError) -> None:
        """The machine lacks something, such as file descriptors: all is tried again, soon."""
        now = time.monotonic()
        if now >= self._tell_lack_at_s:
            self._tell_lack_at_s = now + _REMIND_EVERY_S
            say(f"can't look after the models: {error.strerror or error}; trying again")

    def _wait_without_server(self, seconds: float) -> None:
        """Meanwhile those beside it answer that there is none."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_EVERY_S))
            self._children.revive(self._health, say)

    def begin_to_load(self) -> None:
        """Begins to load all models."""
        names = self._served.names()
        models = [*self._served.always(), *(name for name in names if name in self._by_hand)]
        what = "is up again, loading" if self._has_served else "is up, loading"
        say(f"tritonserver {what} {counted(len(models))}: {', '.join(models) or 'none'}")
        self._failures, self._loading, self._states = {}, list(models), None
        self._tried_twice.clear()
        self._began_s = time.monotonic()
        self._remind_at_s = self._began_s + _REMIND_EVERY_S
        self._server.loader.begin(models)
        self._on_demand.begin()
        self._tell_health()

    def _take(self, outcome: Loaded) -> None:
        """Reports a model that was loaded or failed to load."""
        model = outcome.model
        if self._on_demand.take(outcome):
            self._ask_at_s = 0.0
            return
        is_known = model in self._were_ready | self._seen_ready
        if outcome.failure == PROCESS_DIED and not is_known and model not in self._tried_twice:
            # What killed it may have gone, such as the memory that others took while they loaded.
            self._tried_twice.add(model)
            say(f"model '{model}': {outcome.failure}; it is loaded once more")
            self._server.loader.begin([model])
            return
        if model in self._loading:
            self._loading.remove(model)
            seconds = time.monotonic() - self._began_s  # as the reminders count
            outcome = dataclasses.replace(outcome, seconds=seconds)
        tell_loaded(outcome, self._loading, self._has_served and model in self._were_ready)
        if outcome.failure is None:
            self._failures.pop(model, None)
            if model not in self._were_ready:
                print_curl_lines(self._server, model, self._children)
            self._were_ready.add(model)
        elif is_known:
            self._healer.bring_back(model, outcome.failure)
        else:
            self._failures[model] = f"failed to load: {outcome.failure}"
        self._ask_at_s = 0.0

    def _look(self) -> None:
        now = time.monotonic()
        is_ask_due, is_sweep_due = now >= self._ask_at_s, now >= self._sweep_at_s
        if is_ask_due:
            self._ask_at_s = now + _ASK_EVERY_S
            self._hangs.look(self._is_loading())
            self._ask()
            hung = self._hangs.hung_load(self._served.repository)
            if hung:
                self._renew_server(f"it waits for ever for a process of '{hung}' that has died")
        self._healer.look(sweep=is_sweep_due and self._answers.answered_last)
        if is_sweep_due:
            self._sweep_at_s = now + _SWEEP_EVERY_S
            self._server.keep_memory_private()
        if self._healer.has_deaths and now >= self._count_leftovers_at_s:
            self._count_leftovers_at_s = now + _COUNT_LEFTOVERS_EVERY_S
            num = self._hangs.leftovers()
            if num.are_too_many:
                processes = f"{num.num_processes} processes that died"
                self._renew_server(f"it keeps what {processes} have left behind")
        # What is free is known once those are loaded that always are.
        demands, may_begin = self._children.demands(), not self._loading
        self._on_demand.look(self._states or {}, demands, may_begin=may_begin)
        self._tell_health()
        if is_ask_due:
            self._on_demand.tell(self._health)
        self._follow_loads(now)
        self._end_where_nothing_is_left()

    def _renew_server(self, why: str) -> None:
        """Ends a server, to be started again."""
        say(f"tritonserver is ended, after the requests in flight: {why}")
        self._health.enter("restarting", f"tritonserver is started again: {why}")
        self._healer.end()
        self._states = None
        self._tell_health()
        deadline = time.monotonic() + _RENEW_AFTER_S
        self._server.stop(lambda: time.monotonic() > deadline)
        self._restart("tritonserver has ended")

    def _ask(self) -> None:
        """Asks the server which models are ready."""
        states = self._answers.states()
        if states is None:
            self._health.set_server_up(self._answers.is_up)
            return
        self._health.set_server_up(True)
        self._states = states
        ready = {name for name, reason in self._states.items() if not reason}
        self._healer.on_ready(ready)
        whole = {name for name in self._served.names() if self._parts(name) <= ready}
        self._seen_ready |= whole
        self._by_hand = {name for name in whole if self._served.load(name) == "manual"}
        for model in whole & self._failures.keys():
            del self._failures[model]  # somebody else has loaded it
        self._ask_models(ready)

    def _is_loading(self) -> bool:
        ours = self._loading or self._on_demand.is_loading or self._healer.is_healing()
        return bool(ours or self._answers.loading)

    def _ask_models(self, loaded: set[str]) -> None:
        """Asks loaded models whether they are ready themselves."""
        parts = {part for name in self._served.names() for part in self._served.folders(name)}
        if not (self._asking and self._asking.is_alive()):
            wanted = (loaded & parts, self._hangs.not_ready())
            self._asking = threading.Thread(target=self._unready.ask, args=wanted, daemon=True)
            with contextlib.suppress(RuntimeError):  # there are too many on this machine
                self._asking.start()
        for folder in self._unready.overdue():
            self._healer.end_processes(folder, "it said for a minute that it is not ready")

    def _tell_health(self) -> None:
        healing, names = self._healer.reasons(), self._served.names()
        folders = {name: self._served.folders(name) for name in names}
        if self._states is not None and folders != self._folders:
            self._ask()  # an apply has changed them since
        self._folders = folders
        applied = self._served.last_apply()
        if applied:
            self._health.applied(applied.is_good, applied.at_s)
        self._health.set_models({name: self._reason(name, healing) for name in names})
        self._tell_children()

    def _tell_children(self) -> None:
        """Which models are ready, and which are down and come back: requests wait for those."""
        healing, told = self._healer.healing(), Models()
        were_ready = self._were_ready | self._seen_ready
        lost = self._failures.keys() | self._healer.given_up()
        for name, folders in self._folders.items():
            parts, on_demand = set(folders), self._on_demand.told(name)
            if on_demand or (name in were_ready and not lost & {name, *parts}):
                are_coming = self._states is None or name in self._loading
                is_ours = self._served.is_ours(name)
                for part in parts:
                    needed = parts if part == name else {part}
                    is_healed = bool(needed & healing) or (name in healing and self._is_away(part))
                    is_coming = are_coming or is_healed
                    model = on_demand or Model()
                    told[part] = replace(
                        self._with_deaths(model, needed),
                        is_coming=is_coming or model.is_coming,
                        is_ours=is_ours,
                    )
        self._children.tell(told)

    def _is_away(self, folder: str) -> bool:
        return bool((self._states or {}).get(folder, "is not loaded"))

    def _with_deaths(self, model: Model, needed: set[str]) -> Model:
        """What ports are told of a folder that needs these: a front needs its engine too, and each
        the server.
        """
        deaths = self._healer.deaths
        found = [deaths[folder] for folder in sorted(needed & deaths.keys())]
        num = sum(num for num, _ in found)
        why = found[-1][1].reason if found else ""
        others_live = any(death.survivors for _, death in found)
        if num == sum(self._deaths_then.get(folder, 0) for folder in needed):
            why, others_live = self._server_why, False  # it died last
        num_deaths = num + self._server_deaths
        return replace(model, num_deaths=num_deaths, why=why, others_live=others_live)

    def _reason(self, model: str, healing: Mapping[str, str]) -> str:
        """Why a model is not ready; empty if it is."""
        folders = self._served.folders(model)
        on_demand = self._on_demand.told(model)
        if on_demand and on_demand.is_coming:
            return on_demand.failure
        for folder in folders:
            if folder in healing:
                return healing[folder]
        if self._served.load(model) == "manual" and model not in self._by_hand:
            return ""
        if self._states is None:
            return _LOADING
        for folder in folders:
            reason = self._states.get(folder, "is not loaded")
            if reason:
                loading = _LOADING if model in self._loading else ""
                return loading or self._failures.get(model) or reason
            if folder in self._unready.folders:
                return f"{folder} says that it is not ready"
        return ""

    def _follow_loads(self, now: float) -> None:
        """Reports models that load slowly, and once that all are loaded."""
        if not self._loading:
            self._loaded()
            return
        waiting, timeout_s = ", ".join(self._loading), self._options.load_timeout_s
        if timeout_s is not None and now - self._began_s > timeout_s:
            say(f"still loading after {timeout_s:g} s, no longer waiting: {waiting}")
            self._loading = []
        elif now > self._remind_at_s:
            self._remind_at_s = now + _REMIND_EVERY_S
            say(f"still loading after {now - self._began_s:.0f} s: {waiting}")

    def _loaded(self) -> None:
        """Every model is ready, has failed, or is no longer waited for."""
        if self._has_served:
            self._restarts.serves()
            self._health.enter("serving")
            return
        waits = len(self._served.always()) < len(self._served.names())
        if not (self._server.loader.ready or waits):
            raise ServerError("no model is ready, so there is nothing to serve")
        self._restarts.serves()
        self._has_served = True
        self._health.enter("serving")
        for model in self._on_demand.models:
            print_curl_lines(self._server, model, self._children)
        tell_serving(self._server, self._served, self._children)

    def _end_where_nothing_is_left(self) -> None:
        given_up, names = self._healer.given_up(), self._served.names()
        if not given_up or self._healer.is_healing() or self._loading or self._on_demand.models:
            return
        if all(name in self._failures or self._parts(name) & given_up for name in names):
            lost = ", ".join(sorted(name for name in names if self._parts(name) & given_up))
            raise ServerError(f"no model is left to serve; given up: {lost} (see above)")

    def _parts(self, model: str) -> set[str]:
        return set(self._served.folders(model))

    def _restart(self, words: str) -> None:
        """Restarts a server that has ended, as ``words`` say. Raises ServerError where it is given
        up.
        """
        self._healer.end()
        self._health.enter("restarting")
        self._health.set_server_up(False)
        self._states = None
        self._tell_health()
        self._restarts.restart(words)
        self._answers.starts_anew()
        self._health.enter("restarting")
        self._health.server_restarted()
        self._health.set_server_up(True)
        self._healer.begin()
        self.begin_to_load()


def with_short_timeout(api: ServerApi) -> ServerApi:
    """The same server's API with a short timeout, for calls four times a second."""
    return dataclasses.replace(api, answer_timeout_s=_ANSWER_TIMEOUT_S)

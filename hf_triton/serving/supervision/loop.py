"""Supervises a started server: loads its models, and checks four times a second whether a process
has died. Knows neither signals nor how the server is stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from generator.errors import ServerError
from generator.models_yaml.server_settings import OnDemand
from generator.render import model_config
from generator.render.sample_requests import curl_lines
from generator.repository.writing import is_locked
from hf_triton.ports.retries import Model, demand_of, line_of
from hf_triton.ports.settings import EVERYBODY, Access, OpenAiPort
from hf_triton.serving.supervision.hang_watch import HangWatch, ServerAnswers
from hf_triton.serving.supervision.health import Health, ModelReport
from hf_triton.serving.supervision.model_loader import ModelLoader
from hf_triton.serving.supervision.on_demand.control import OnDemandModels
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.serving.supervision.stub_deaths import StubDeaths, are_too_many, left_behind
from hf_triton.tritonserver.child_process import ChildProcess
from hf_triton.tritonserver.log import say
from hf_triton.tritonserver.model_state import Cause, ModelState, ModelStates, State, worst_of
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.restart_policy import MAX_RESTARTS, Restarts, times
from hf_triton.tritonserver.stubs import StubEnds, find_stubs

_LOOK_EVERY_S = 0.25
_ASK_EVERY_S = 1.0
_ANSWER_TIMEOUT_S = 2.0  # of calls that are made often
_REMIND_EVERY_S = 10.0
_COUNT_LEFTOVERS_EVERY_S = 10.0
# Requests in flight may take so long where a server is renewed.
_RENEW_AFTER_S = 10.0
# What callers are told of a model that nobody loads by himself.
_BY_APPLY = "correct that, and `hf-triton apply` loads it again"
_BY_HAND = "correct that, and load it again"
_OF_SOMEBODY = (State.ASLEEP, State.LOADING, State.FAILED)  # where models are loaded by hand
_RETRY_S = 60


@dataclass(frozen=True)
class ServeOptions:
    """The options of ``serve``. ``config`` is the path of models.yaml, for the state file.
    ``drain_s`` is the time from the signal to the stop, during which the server is not ready.
    ``on_demand`` says how models share memory that are not always loaded.
    """

    config: Path
    max_restarts: int = MAX_RESTARTS
    drain_s: float = 0.0
    on_demand: OnDemand = field(default_factory=OnDemand)


@dataclass(frozen=True)
class PublicPorts:
    """The ports of one ``serve``: the process that listens on them, and what is printed of them.
    Curl lines, which are the result of ``serve``, go to stdout; everything else to stderr.

    ``process`` listens while tritonserver starts, and answers that it does; ``access`` is what
    callers need.
    """

    process: ChildProcess
    openai: OpenAiPort | None = None
    access: Access = EVERYBODY

    def print_curl_lines(self, server: TritonServer, model: str) -> None:
        """Prints a request that works for each endpoint of a model."""
        if model_config.arm_of(server.repository / model / "config.pbtxt"):
            return  # asked through the model whose arm it is
        listen, key = server.listen, self.access.key_variable
        url = f"{self._scheme}://{listen.address(listen.http_port)}/v2/models"
        openai = self.openai and f"{self._scheme}://{listen.address(listen.openai_port)}"
        lines = curl_lines(server.repository, model, url, key, openai or "")
        with contextlib.suppress(OSError):
            print("\n".join([f"# {model}", *lines]), flush=True)

    def tell_serving(self, server: TritonServer, served: ServedModels, num_ready: int) -> None:
        listen, openai = server.listen, self.openai
        grpc = listen.address(listen.grpc_port)
        where = f"{self._scheme} {listen.address(listen.http_port)}, grpc {grpc}"
        if openai:
            url = f"{self._scheme}://{listen.address(listen.openai_port)}"
            where += f", OpenAI's API {url}/v1"
            where += f", playground {url}/playground" * openai.has_playground
        if listen.health_port:
            where += f", health http://{listen.address(listen.health_port)}/ready"
        hint = "" if openai else "; --openai-port adds OpenAI's API and a playground"
        num_models, num_on_demand = len(served.always()), len(served.on_demand())
        counts = []
        if num_models:
            counts.append(f"{num_ready} of {times(num_models, 'model')}")
        if num_on_demand:
            counts.append(f"{num_on_demand if counts else times(num_on_demand, 'model')} on demand")
        say(f"serving {' and '.join(counts)} on {where}; Ctrl-C stops{hint}")

    @property
    def _scheme(self) -> str:
        return "https" if self.access.tls else "http"


class Supervisor:
    """Supervises one server and its models. A server that ends is restarted with the same ports
    and repository, after a longer delay each time: for ever once it ``has_served``, which is
    when all models that can be loaded are, for what ends it then may come from clients.
    """

    def __init__(
        self,
        server: TritonServer,
        served: ServedModels,
        health: Health,
        options: ServeOptions,
        ports: PublicPorts,
    ) -> None:
        self.server, self._served, self.health = server, served, health
        self._options, self.ports = options, ports
        health.why_no_ports = lambda: ports.process.why_not_up
        api, ends = dataclasses.replace(server.api, answer_timeout_s=_ANSWER_TIMEOUT_S), StubEnds()
        deaths = StubDeaths(api, lambda: ends.watched(find_stubs(server.pid)), ends)
        self.states = ModelStates(options.max_restarts)
        self.loader = ModelLoader(api, deaths, served, self.states, say, server.log_tail)
        self._answers = ServerAnswers(api)
        self._hangs = HangWatch(server, self._answers, self.loader, ports.process, say)
        self._on_demand = OnDemandModels(
            server, served, self.loader, self.states, options.on_demand, say
        )
        self._restarts = Restarts(options.max_restarts)
        self.has_served = False
        self._has_curl_lines: set[str] = set()
        self._changing: set[str] = set()  # locked, and not seen since
        self._begun: list[str] = []  # since the server was started
        self._loading: list[str] = []  # of those, what is waited for
        self._ask_at_s = self._lack_told_at_s = self._count_leftovers_at_s = 0.0

    def look(self) -> None:
        """Waits a moment, and looks after what ``begin_to_load`` began. Raises ServerError if no
        model is left to serve, or a server that has never served dies too often.
        """
        self.states.changed.wait(_LOOK_EVERY_S)
        self.states.changed.clear()
        try:
            if (code := self.server.exit_code()) is None:
                self._look_at_models()
                self._revive_ports()
            else:
                cause = Cause.KILLED if code == -signal.SIGKILL else Cause.CRASHED
                self._restart(self.server.exit_message("tritonserver died"), cause)
        except OSError as error:  # the machine lacks something, such as file descriptors
            now = time.monotonic()
            if now >= self._lack_told_at_s:
                self._lack_told_at_s = now + _REMIND_EVERY_S
                say(f"can't check the models: {error.strerror or error}; trying again")

    def _revive_ports(self) -> None:
        if message := self.ports.process.revive():
            say(message)

    def begin_to_load(self) -> None:
        """Begins to load all models; after a restart also those that somebody had loaded."""
        names, models = self._served.names(), []
        for name in names:
            load = self._served.load(name)
            if load == "always" or (load == "manual" and self.states[name].is_coming_back):
                models.append(name)
        what = "is up again, loading" if self.has_served else "is up, loading"
        say(f"tritonserver {what} {times(len(models), 'model')}: {', '.join(models) or 'none'}")
        self._begun, self._loading = models, list(models)
        self._began_s = time.monotonic()
        self._remind_at_s = self._began_s + _REMIND_EVERY_S
        for name in names:
            for state in self._states_of(name) if name not in models else ():
                state.unloaded()
        self.loader.begin(models)
        self._report_states()

    def _states_of(self, name: str) -> list[ModelState]:
        return self.states.of(self._served.folders(name))

    def _look_at_models(self) -> None:
        now = time.monotonic()
        is_due = now >= self._ask_at_s
        is_loading = self.states.any(State.LOADING, State.HEALING)
        if is_due:
            self._ask_at_s = now + _ASK_EVERY_S
            self._hangs.look(is_loading or bool(self._answers.loading))
            self._ask()
            hung = self._hangs.look_at_models(self._served.repository)
            if hung:
                self._renew_server(f"it waits for ever for a process of '{hung}' that has died")
        # A loading process must be known before it dies: its end is the cause of the failed load.
        self.loader.look(sweep=is_due and self._answers.answered_last, find=is_loading)
        if is_due:
            self.server.keep_memory_private()
        if self.loader.has_deaths and now >= self._count_leftovers_at_s:
            self._count_leftovers_at_s = now + _COUNT_LEFTOVERS_EVERY_S
            living = {stub.pid for stub in self.loader.stubs}
            num_dead, part = left_behind(self.server.shared_memory_prefix, living)
            if are_too_many(num_dead, part):
                self._renew_server(f"it still holds memory of {num_dead} processes that died")
        # Free memory is known once the models that are always loaded are there.
        demand = demand_of(self.ports.process.said)
        self._on_demand.look(demand, may_begin=not self._loading)
        self._report_states()
        if is_due:
            self._on_demand.report(self.health)
        for model in self._begun:
            if self.states.are_ready(self._served.folders(model)):
                self._print_curl_lines(model)
        self._follow_loads(now)
        self._end_where_nothing_is_left()

    def _ask(self) -> None:
        for name in self._served.names():
            self._states_of(name)
        # What is unlocked by now, the index tells right.
        changing = {one for one in self._changing if is_locked(self._served.repository / one)}
        since, seen = self.states.num_changes, self._answers.states()
        self.health.set_server_up(self._answers.is_up if seen is None else True)
        if seen is not None:
            self.states.see(seen, since)
            self._changing = changing

    def _report_states(self) -> None:
        """Tells probes and ports how each model is."""
        reports, models = dict[str, ModelReport](), dict[str, Model]()
        for name in self._served.names():
            states, on_demand = self._states_of(name), self._on_demand.for_ports(name)
            reports[name] = ModelReport(
                self._reason(name, states, on_demand),
                sum(one.num_deaths for one in states),
                sum(one.num_restarts for one in states),
                any(one.state is State.GIVEN_UP for one in states),
            )
            models.update(self._for_ports(name, on_demand, reports[name].reason))
        self.health.models = reports
        self.ports.process.tell(line_of(models))

    def _for_ports(
        self, name: str, on_demand: Model | None, reason: str
    ) -> Iterator[tuple[str, Model]]:
        """Yields the state of an entry's folders for the ports: a front needs its engine too."""
        folders, is_ours = self._served.folders(name), self._served.is_ours(name)
        for part in folders:
            needed = folders if part == name else [part]
            states = self.states.of(needed)
            worst = worst_of(states)
            death = self.states.last_death(needed)
            num_deaths = sum(one.num_deaths for one in states) + self.states.num_server_deaths
            model = on_demand or Model()
            if worst.state.is_lost and not on_demand:
                how = _BY_HAND if self._served.load(name) == "manual" else _BY_APPLY
                model = Model(True, failure=f"{worst.reason}; {how}", retry_s=_RETRY_S)
            yield (
                part,
                replace(
                    model,
                    is_coming=model.is_coming
                    or any(one.is_coming_back for one in states)
                    or any(map(self._is_changed, needed)),
                    num_deaths=num_deaths,
                    why=death.reason,
                    cause=death.cause,
                    waits_for=model.waits_for or worst.told,
                    state=worst.state,
                    reason=reason if part == name else "",
                    is_ours=is_ours,
                ),
            )

    def _is_changed(self, folder: str) -> bool:
        """Returns whether an apply has unloaded it, to load it anew, as far as the index tells."""
        state = self.states[folder]
        if state.state is not State.ASLEEP or not state.was_ready:
            return False
        if is_locked(self._served.repository / folder):
            self._changing.add(folder)
        return folder in self._changing

    def _reason(self, name: str, states: Sequence[ModelState], on_demand: Model | None) -> str:
        if on_demand and on_demand.is_coming:
            return on_demand.failure
        worst = worst_of(states)
        if self._served.load(name) == "manual" and worst.state in _OF_SOMEBODY:
            return ""
        unready = (one for one in self._served.folders(name) if one in self._hangs.not_ready)
        said = (f"{folder} says that it is not ready" for folder in unready)
        return worst.told or next(said, "")

    def _follow_loads(self, now: float) -> None:
        self._loading = [model for model in self._loading if self._is_awaited(model)]
        if not self._loading:
            self._loaded()
        elif now > self._remind_at_s:
            self._remind_at_s = now + _REMIND_EVERY_S
            say(f"still loading after {now - self._began_s:.0f} s: {', '.join(self._loading)}")

    def _is_awaited(self, model: str) -> bool:
        """Returns whether its load is under way, and did not fail after it had been ready."""
        states = self._states_of(model)
        return any(one.state is State.LOADING or one.cause is Cause.SERVER_ENDED for one in states)

    def _print_curl_lines(self, model: str) -> None:
        """Once for each model."""
        if model not in self._has_curl_lines:
            self._has_curl_lines.add(model)
            self.ports.print_curl_lines(self.server, model)

    def _loaded(self) -> None:
        """Every model is ready, or has failed."""
        num_ready = sum(self.states[model].was_ready for model in self._begun)
        waits = len(self._served.always()) < len(self._served.names())
        if not (self.has_served or num_ready or waits):
            raise ServerError("no model is ready, so there is nothing to serve")
        is_first, self.has_served = not self.has_served, True
        self._restarts.lives()
        self.health.enter("serving")
        if is_first:
            for model in self._on_demand.models:
                self._print_curl_lines(model)
            self.ports.tell_serving(self.server, self._served, num_ready)

    def _end_where_nothing_is_left(self) -> None:
        given_up = self.health.given_up()
        if not given_up or self._loading or self._on_demand.models:
            return
        if all(worst_of(self._states_of(name)).state.is_lost for name in self._served.names()):
            lost = ", ".join(sorted(given_up))
            raise ServerError(f"no model is left to serve; given up: {lost} (see above)")

    def _renew_server(self, why: str) -> None:
        """Ends a server, to be started again."""
        say(f"tritonserver is ended, after the requests in flight: {why}")
        self.health.enter("restarting", f"tritonserver is started again: {why}")
        self.loader.end()
        self.states.server_ended()
        self._report_states()
        deadline = time.monotonic() + _RENEW_AFTER_S
        self.server.stop(lambda: time.monotonic() > deadline)
        self._start_again("tritonserver has ended")

    def _restart(self, words: str, cause: Cause) -> None:
        self.loader.end()
        self.health.enter("restarting")
        self.health.set_server_up(False)
        self.states.server_died(cause, words.partition(";")[0])
        self._report_states()
        self._start_again(words)

    def _start_again(self, words: str) -> None:
        """Clears away what the server left behind and starts it; ``words`` say how it ended. Raises
        ServerError where it ends too often before it has ever served, or is to stop: a start could
        take longer than the drain.
        """
        while True:
            if self.health.phase == "stopping":
                raise ServerError(words)
            self.server.kill()
            self._wait_to_start(words)
            try:
                self.server.start()
                break
            except ServerError as error:
                words = str(error)
            except OSError as error:  # the machine lacks memory, processes, file descriptors
                words = f"tritonserver did not start: {error.strerror or error}"
        self._answers.server_started()
        self.health.enter("restarting")
        self.health.num_server_restarts += 1
        self.health.set_server_up(True)
        self.loader.server_started()
        self.begin_to_load()

    def _wait_to_start(self, words: str) -> None:
        """Meanwhile the ports answer that no server runs."""
        delay_s = self._restarts.died() if self.has_served else self._restarts.failed()
        if delay_s is None:
            tried = times(self._restarts.num_failed, "time")
            raise ServerError(
                f"{words}\ngiven up: tritonserver died {tried} in a row before it had loaded all "
                "models. Correct what the lines above report, and start serve again"
            )
        again = f"is started {self._restarts.again(delay_s)}"
        say(words)
        say(f"tritonserver {again}")
        self.health.enter("restarting", f"{words.partition(';')[0]} and {again}")
        deadline = time.monotonic() + delay_s
        while (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_EVERY_S))
            self._revive_ports()

"""The models of one server that are loaded on demand: loads and unloads what residency.py decides,
and tells the ports and the health port of it.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping

from generator.errors import GeneratorError
from generator.models_yaml.server_settings import OnDemand
from hf_triton.ports.retries import Demand as PortDemand
from hf_triton.ports.retries import Model
from hf_triton.serving.apply.model_update import locked_folders
from hf_triton.serving.supervision.health import Health
from hf_triton.serving.supervision.model_loader import ModelLoader
from hf_triton.serving.supervision.on_demand.residency import Demand, Residency, Resident
from hf_triton.serving.supervision.on_demand.sizes import Sizes
from hf_triton.serving.supervision.served_models import OnDemandEntry, ServedModels
from hf_triton.text_generation.memory.cache_budget import budgets_file
from hf_triton.tritonserver.http_api import Sample
from hf_triton.tritonserver.model_state import ModelState, ModelStates, State
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.system_calls import start_thread
from hf_triton.tritonserver.triton_texts import READY, UNLOADING

_POLL_S = 0.1
_TRIED_AGAIN_S = 1.0


class OnDemandModels:
    def __init__(
        self,
        server: TritonServer,
        served: ServedModels,
        loader: ModelLoader,
        states: ModelStates,
        settings: OnDemand,
        say: Callable[[str], None],
    ) -> None:
        self._server, self._served = server, served
        self._loader, self._states = loader, states
        self._settings, self._say = settings, say
        self._sizes = Sizes(
            served.repository, settings, self._folders, lambda: loader.stubs, server.api.metrics
        )
        about = settings.max_loads, self._states_of, self._sizes.of, self._sizes.limits
        self._residency = Residency(*about, self._load, self._evict, say, time.monotonic)
        self._entries: dict[str, OnDemandEntry] = {}
        self._owners: dict[str, str] = {}  # of entries and arms

    @property
    def models(self) -> Mapping[str, Resident]:
        return self._residency.models

    def look(self, demand: PortDemand, *, may_begin: bool) -> None:
        """Begins what is to be done, where it may; to be called four times a second."""
        residency = self._residency
        self._entries = self._served.on_demand()
        self._owners = {one: name for name, entry in self._entries.items() for one in entry.entries}
        residency.set_entries({name: entry.idle_s for name, entry in self._entries.items()})
        if not residency.models:
            return
        for name in residency.look():
            self._sizes.note_loaded(name)
        residency.set_demands({name: self._demand(name, demand) for name in residency.models})
        # One that is loaded again takes more for a moment.
        running = (State.READY, State.LEAVING)
        self._sizes.measure(name for name, one in self.models.items() if one.state in running)
        if may_begin:
            residency.decide()

    def _demand(self, name: str, demand: PortDemand) -> Demand:
        own = [demand[folder] for folder in self._folders(name) if folder in demand]
        return Demand(*map(sum, zip(*own, strict=True)))

    def for_ports(self, model: str) -> Model | None:
        """The state of an entry or arm for the ports, or None where it is always loaded."""
        found = self.models.get(self._owners.get(model, ""))
        if found is None:
            return None
        return Model(
            is_coming=found.residence != "loaded" or found.closed,
            residence=found.residence,
            waits_for=found.waits_for,
            wait_s=self._settings.load_wait_s,
            failure=found.failure,
            retry_s=max(1, math.ceil(found.retry_at_s - time.monotonic())) if found.failure else 0,
        )

    def report(self, health: Health) -> None:
        """Tells probes and metrics how each model is."""
        health.on_demand = {name: model.residence for name, model in self.models.items()}
        health.on_demand_samples = [*self._samples()] if self.models else []

    def _samples(self) -> Iterator[Sample]:
        for name, model in self.models.items():
            own = {"model": name}
            for family, value in (
                ("hf_triton_model_loaded", float(model.residence == "loaded")),
                ("hf_triton_model_loads_total", model.num_loads),
                ("hf_triton_model_waiting_requests", model.demand.waiting),
                ("hf_triton_model_load_wait_seconds_total", model.waited_s),
            ):
                yield Sample(family, own, value)
            for why, count in model.num_evictions.items():
                yield Sample("hf_triton_model_put_out_total", {**own, "reason": why}, count)
            for device, size in self._sizes.of(name).items():
                yield Sample("hf_triton_on_demand_memory_bytes", {**own, "device": device}, size)
        for device, limit in self._sizes.limits().items():
            yield Sample("hf_triton_on_demand_memory_limit_bytes", {"device": device}, limit)

    def _folders(self, name: str) -> list[str]:
        """The folders of an entry and its arms, in the order in which they are loaded."""
        return self._entries[name].folders if name in self._entries else []

    def _states_of(self, name: str) -> list[ModelState]:
        return self._states.of(self._folders(name))

    def _load(self, name: str) -> None:
        self._tell_budgets()
        self._loader.begin(self._entries[name].entries)

    def _tell_budgets(self) -> None:
        """Says how large caches of keys and values may be, where a GPU is shared."""
        found = self._sizes.cache_budgets(self.models)
        budgets: dict[str, Mapping[str, float]] = {}
        for name, own in found.items():
            num = len(self._entries[name].entries)
            alike = {device: size / num for device, size in own.items()}
            budgets |= dict.fromkeys(self._folders(name), alike)
        if prefix := self._server.listen.abandoned_requests * any(found.values()):
            with contextlib.suppress(OSError):  # there is no room for it: a share of what is free
                budgets_file(prefix).write_text(json.dumps(budgets), encoding="utf-8")

    def _evict(self, name: str) -> None:
        self._sizes.note_unloaded(name)
        for state in self._states_of(name):
            state.leave()
        try:
            start_thread(self._unload, name)
        except OSError:
            for state in self._states_of(name):
                state.stays()
            raise

    def _unload(self, name: str) -> None:
        """Unloads an entry's folders, each once its requests are answered, and waits until their
        processes have ended: until then their memory is not free.
        """
        folders, pid = self._folders(name), self._server.pid
        with (
            contextlib.suppress(OSError, GeneratorError),
            locked_folders(self._served.repository / one for one in folders),
        ):
            entry = self._served.on_demand().get(name)
            for folder in (entry.folders if entry else folders)[::-1]:  # a front before its engine
                if self._server.api.unload(folder) is not None:
                    break
                while self._server.pid == pid and self._is_there(folder):
                    time.sleep(_POLL_S)
                if self._server.pid == pid:
                    self._states[folder].unloaded()
        for state in self._states.of(folders):
            state.stays()  # where Triton refused

    def _is_there(self, folder: str) -> bool:
        """Returns whether the server or a process still has it."""
        try:
            states = {one.state for one in self._server.api.index() if one.model == folder}
        except (OSError, GeneratorError):
            time.sleep(_TRIED_AGAIN_S)
            return True
        return bool(states & {READY, UNLOADING}) or bool(self._loader.living(folder))

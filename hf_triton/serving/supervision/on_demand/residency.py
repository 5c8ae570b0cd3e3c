"""Chooses the models on demand that are in memory: those that are asked for, as far as
the memory for all allows; the least recently used one is evicted first. Decides only: how a model
is, tell the states of its folders.

The first model in line gets room before any other. A model that gets requests without a pause stays
for a while, so that two that do not fit together take turns instead of loading for each request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hf_triton.tritonserver.model_state import ModelState, State, worst_of

Sizes = Mapping[str, float]  # bytes by device

# A model is idle after so long without a request: clients pause between their requests.
_PAUSE_S = 1.0
# A busy model makes room after this many seconds or times a load's time, whichever is longer.
_LEAST_STAY_S, _LOADS_STAY = 5.0, 4.0
_LONG_LOAD_S = 60.0
_FIRST_RETRY_S, _LONGEST_RETRY_S = 5.0, 300.0
_GIB = 2**30
_LOADED = (State.READY, State.HEALING)


class Demand(NamedTuple):
    """The requests that wait for a model, that it has, and that it has been sent so far."""

    waiting: int = 0
    running: int = 0
    num_sent: int = 0


@dataclass
class Resident:
    """One entry of models.yaml. Times are in seconds of the clock. ``state`` is that of its folders
    at the last look. ``failure`` is why it can't be had before ``retry_at_s``; ``waits_for`` why it
    is not loaded yet. One that is ``closed`` takes no more requests, and goes once it has answered
    those that it has.
    """

    name: str
    idle_s: float | None = None
    state: State = State.ASLEEP
    demand: Demand = field(default_factory=Demand)
    closed: bool = False
    waits_since_s: float | None = None
    waits_for: str = ""
    asked_at_s: float = -math.inf
    load_began_s: float | None = None  # of a load that was asked for, until its end is seen
    loaded_at_s: float = -math.inf
    load_s: float = 0.0
    made_room_for: str = ""
    failure: str = ""
    retry_at_s: float = -math.inf
    num_failures: int = 0
    num_loads: int = 0
    num_evictions: dict[str, int] = field(default_factory=lambda: {"idle": 0, "room": 0})
    waited_s: float = 0.0

    @property
    def is_busy(self) -> bool:
        """True if a request waits for it or is computed."""
        return bool(self.demand.waiting or self.demand.running)

    @property
    def residence(self) -> str:
        """``asleep``, ``loading``, ``loaded`` or ``leaving``."""
        state = State.LOADING if self.load_began_s is not None else self.state
        if state in _LOADED:
            return "loaded"
        return (State.ASLEEP if state.is_lost else state).value


class Residency:
    """The models of one server. ``sizes`` are bytes by device of an entry, as far as they are
    known; ``limits`` those that all may take together, of each device; ``load`` and ``evict``
    begin, as the states of its folders show, which ``states`` returns.
    """

    def __init__(
        self,
        max_loads: int,
        states: Callable[[str], Sequence[ModelState]],
        sizes: Callable[[str], Sizes],
        limits: Callable[[], Sizes],
        load: Callable[[str], None],
        evict: Callable[[str], None],
        say: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._max_loads, self._states = max_loads, states
        self._sizes, self._limits = sizes, limits
        self._load, self._evict, self._say, self._clock = load, evict, say, clock
        self.models: dict[str, Resident] = {}

    def set_entries(self, idle_s: Mapping[str, float | None]) -> None:
        """Takes the entries that are loaded on demand now, and when each may go."""
        for name in self.models.keys() - idle_s.keys():
            del self.models[name]
        for name, seconds in idle_s.items():
            self.models.setdefault(name, Resident(name)).idle_s = seconds

    def look(self) -> list[str]:
        """Looks how the models are; returns those whose loads have ended well."""
        now, loaded = self._clock(), list[str]()
        for model in self.models.values():
            parts, was_loaded = self._states(model.name), model.state in _LOADED
            model.state = worst_of(parts).state
            began_s = model.load_began_s
            if model.state not in (State.LOADING, State.HEALING):
                model.load_began_s = None
            if model.state is State.READY and (began_s is not None or not was_loaded):
                model.closed, model.waits_for, model.failure, model.num_failures = False, "", "", 0
                model.loaded_at_s = model.asked_at_s = now
            elif model.state.is_lost and (began_s is not None or was_loaded):
                self._fail(model, next((one.reason for one in parts if one.state.is_lost), ""))
            elif model.state is State.ASLEEP:
                model.closed = False
            if model.state is State.READY and began_s is not None:
                model.load_s = now - began_s
                model.num_loads += 1
                model.waited_s += now - (model.waits_since_s or now)
                loaded.append(model.name)
        return loaded

    def set_demands(self, demands: Mapping[str, Demand]) -> None:
        now = self._clock()
        for model in self.models.values():
            before, model.demand = model.demand, demands.get(model.name, Demand())
            if model.is_busy or model.demand.num_sent != before.num_sent:
                model.asked_at_s = now
            if not model.demand.waiting or model.residence == "loaded":
                model.waits_since_s, model.waits_for = None, ""
            elif model.waits_since_s is None:
                model.waits_since_s = now
            if now >= model.retry_at_s:
                model.failure = ""

    def decide(self) -> None:
        now = self._clock()
        for model in self.models.values():
            if model.closed and model.state is State.READY and not model.demand.running:
                self._leave(model, "room")
        for model in self.models.values():
            idle_for = now - max(model.asked_at_s, model.loaded_at_s)
            is_idle = model.state is State.READY and not model.is_busy
            if is_idle and model.idle_s is not None and idle_for > model.idle_s:
                self._say(f"model '{model.name}' is unloaded: no request for {idle_for:.0f} s")
                self._leave(model, "idle")
        self._load_waiting(now)

    def _load_waiting(self, now: float) -> None:
        waiting = [
            (model.waits_since_s, model)
            for model in self.models.values()
            if model.residence == "asleep" and model.waits_since_s is not None and not model.failure
        ]
        closed = {model.name for model in self.models.values() if model.closed}
        needed = set[str]()
        limits = self._limits() if waiting else {}
        for _, model in sorted(waiting, key=lambda one: (one[0], one[1].name)):
            size = self._sizes(model.name)
            if over := [device for device in size if size[device] > limits.get(device, math.inf)]:
                self._fail(
                    model,
                    f"it needs {size[over[0]] / _GIB:.2f} GiB of {over[0]}, and models that are "
                    f"loaded on demand may take {limits[over[0]] / _GIB:.2f} GiB together",
                )
            elif short := self._lacking(size, limits):  # also while another one loads
                needed |= self._make_room(model, size, short, now)
                break  # the first in line gets it
            elif self._num_loading(now) < self._max_loads:
                model.load_began_s, model.waits_for = now, "it is being loaded"
                self._load(model.name)
            else:
                model.waits_for, needed = "it waits for loads of other models", closed
                break
        for name in closed - needed:
            if self.models[name].residence == "loaded":
                self.models[name].closed = False  # who wanted its room has left

    def _num_loading(self, now: float) -> int:
        """Without those that take long: they may be downloading."""
        models = self.models.values()
        began_s = (one.load_began_s for one in models if one.load_began_s is not None)
        return sum(now - at_s < _LONG_LOAD_S for at_s in began_s)

    def _lacking(self, size: Sizes, limits: Sizes) -> dict[str, float]:
        """The bytes of each device that are missing."""
        there = (one.name for one in self.models.values() if one.residence != "asleep")
        sizes = [size, *map(self._sizes, there)]
        lacking = {
            device: sum(one.get(device, 0.0) for one in sizes) - limits.get(device, math.inf)
            for device in size
        }
        return {device: count for device, count in lacking.items() if count > 0}

    def _make_room(
        self, model: Resident, size: Sizes, short: dict[str, float], now: float
    ) -> set[str]:
        """Picks models to evict for ``model``; returns none while they are not enough."""
        for one in self.models.values():  # room that is coming already
            if one.residence == "leaving":
                short = _less(short, self._sizes(one.name))
        chosen = []
        loaded = [one for one in self.models.values() if one.residence == "loaded"]
        for one in sorted(loaded, key=lambda one: (one.is_busy, one.asked_at_s)):
            if not short:
                break
            if short.keys() & self._sizes(one.name).keys() and (
                one.closed or self._may_go(one, model, now)
            ):
                chosen.append(one)
                short = _less(short, self._sizes(one.name))
        holders = ", ".join(
            f"'{one.name}'" for one in loaded if size.keys() & self._sizes(one.name)
        )
        model.waits_for = f"it waits for memory that {holders or 'others'} still hold"
        if short:
            return set()  # those that may go are not enough yet
        for one in chosen:
            one.closed, one.made_room_for = True, model.name
        return {one.name for one in chosen}

    def _may_go(self, model: Resident, instead: Resident, now: float) -> bool:
        stay_s = max(_LEAST_STAY_S, _LOADS_STAY * max(model.load_s, instead.load_s))
        is_idle = not model.is_busy and now - model.asked_at_s > _PAUSE_S
        has_begun = now - model.loaded_at_s > _PAUSE_S  # those that waited for it are sent by now
        return (is_idle and has_begun) or now - model.loaded_at_s > stay_s

    def _leave(self, model: Resident, why: str) -> None:
        self._evict(model.name)  # where that fails, it is tried again
        model.state, model.closed = State.LEAVING, True
        model.num_evictions[why] += 1
        if why == "room":
            self._say(f"model '{model.name}' is unloaded to make room for '{model.made_room_for}'")

    def _fail(self, model: Resident, why: str) -> None:
        now = self._clock()
        model.num_failures += 1
        pause_s = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** (model.num_failures - 1))
        model.waits_since_s, model.closed = None, False
        model.failure, model.retry_at_s = why, now + pause_s
        self._say(
            f"model '{model.name}' can't be loaded: {why}; requests try again after {pause_s:.0f} s"
        )


def _less(short: Mapping[str, float], size: Sizes) -> dict[str, float]:
    left = {device: count - size.get(device, 0.0) for device, count in short.items()}
    return {device: count for device, count in left.items() if count > 0}

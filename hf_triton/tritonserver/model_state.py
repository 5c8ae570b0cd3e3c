"""The state of each Triton model: which event changes it, by one table, and counts of its deaths.

Knows no server, no process and no port: those who see an event report it, all others only read.
"""

from __future__ import annotations

import enum
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hf_triton.tritonserver.restart_policy import MAX_RESTARTS, Restarts, times


class State(str, enum.Enum):
    """A model's state; the value is the word that people read."""

    ASLEEP = "asleep"  # not loaded, nor being loaded
    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"  # its unload is under way
    HEALING = "healing"  # was ready, and is brought back
    FAILED = "failed"  # its load
    GIVEN_UP = "given up"  # was ready, and could not be brought back

    @property
    def is_lost(self) -> bool:
        """True if it is not loaded before somebody asks for that."""
        return self in (State.FAILED, State.GIVEN_UP)


class Event(enum.Enum):
    """A change of a state; the value is the word in the chart of docs/architecture.md."""

    LOAD = "a load begins"
    READY = "a version is ready"
    LOAD_FAILED = "a load failed for good"
    DIED = "a process died"
    UNLOAD = "an unload begins"
    UNLOADED = "it was unloaded"
    SERVER_ENDED = "tritonserver ended"


class Cause(str, enum.Enum):
    """The cause for which a model is not ready."""

    NONE = ""
    CRASHED = "crashed"  # by a signal that it raised itself, or with an exit code
    KILLED = "killed"  # from outside
    OUT_OF_MEMORY = "out of memory"
    DIED = "died"  # of an unknown cause
    HUNG = "hung"
    NOT_READY = "not ready"  # it said for too long that it is not ready
    LOAD_FAILED = "load failed"
    SERVER_ENDED = "tritonserver ended"


# Pairs that are not listed have no effect.
TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.ASLEEP, Event.LOAD): State.LOADING,
    (State.ASLEEP, Event.READY): State.READY,
    (State.LOADING, Event.READY): State.READY,
    (State.LOADING, Event.LOAD_FAILED): State.FAILED,
    (State.LOADING, Event.UNLOADED): State.ASLEEP,
    (State.READY, Event.DIED): State.HEALING,
    (State.READY, Event.UNLOAD): State.LEAVING,
    (State.READY, Event.UNLOADED): State.ASLEEP,
    (State.READY, Event.SERVER_ENDED): State.HEALING,
    (State.LEAVING, Event.READY): State.READY,
    (State.LEAVING, Event.UNLOADED): State.ASLEEP,
    (State.HEALING, Event.READY): State.READY,
    (State.HEALING, Event.LOAD_FAILED): State.GIVEN_UP,
    (State.HEALING, Event.UNLOADED): State.ASLEEP,
    (State.FAILED, Event.LOAD): State.LOADING,
    (State.FAILED, Event.READY): State.READY,
    (State.FAILED, Event.UNLOADED): State.ASLEEP,
    (State.FAILED, Event.SERVER_ENDED): State.LOADING,
    (State.GIVEN_UP, Event.LOAD): State.HEALING,
    (State.GIVEN_UP, Event.READY): State.READY,
    (State.GIVEN_UP, Event.UNLOADED): State.ASLEEP,
    (State.GIVEN_UP, Event.SERVER_ENDED): State.HEALING,
}
_WORST_FIRST = (
    *(State.GIVEN_UP, State.FAILED, State.HEALING, State.LOADING),
    *(State.LEAVING, State.ASLEEP, State.READY),
)
LOADING, NOT_LOADED = "is being loaded", "is not loaded"
FAILED_TO_LOAD = "failed to load: "
_DEATHS = (Cause.CRASHED, Cause.OUT_OF_MEMORY, Cause.DIED)
# A first load in which its process dies is tried so often again: what killed it may have gone, such
# as the memory that others took while they loaded.
_AFTER_DEATHS = 1


@dataclass(frozen=True)
class Seen:
    """A model in Triton's index; ``reason`` is why it is not ready."""

    is_ready: bool = False
    is_loading: bool = False
    reason: str = NOT_LOADED


@dataclass(frozen=True)
class LastDeath:
    """A model's last death; ``number`` counts the deaths of all models."""

    number: int = 0
    cause: Cause = Cause.NONE
    reason: str = ""


class ModelState:
    """One Triton model. ``reason`` says why it is not ready; ``generation`` counts how often it
    became ready. Where a load or unload of ours is under way, ``in_hand``, its result alone counts,
    and not what Triton says meanwhile. ``changed`` is set whenever its state changes.
    """

    def __init__(
        self,
        restarts: Restarts,
        lock: threading.RLock,
        numbers: Iterator[int],
        changed: threading.Event,
    ) -> None:
        self.state, self.cause, self.reason = State.ASLEEP, Cause.NONE, NOT_LOADED
        self.generation = self.num_changes = self.num_deaths = self.num_restarts = 0
        self.last_death = LastDeath()
        self.in_hand = False
        self._is_counted = False  # its last death: one that was only suspected is not
        self.restarts = restarts
        self._lock, self._numbers, self._changed = lock, numbers, changed
        self._prefix = self._retry = ""  # said before and after the reason

    @property
    def was_ready(self) -> bool:
        return self.generation > 0

    @property
    def is_coming_back(self) -> bool:
        """True if requests to it wait until it is ready; not for the first try of a first load."""
        if self.state is State.LOADING:
            return self.was_ready or self.cause not in (Cause.NONE, Cause.SERVER_ENDED)
        return self.state is State.HEALING

    @property
    def told(self) -> str:
        """A sentence for people: why it is not ready, and what is done about it; "" if it is."""
        return f"{self._prefix}{self.reason}{self._retry}"

    def tell_retry(self, delay_s: float) -> str:
        with self._lock:
            self._retry = f"; it is loaded {self.restarts.again(delay_s)}"
            return self.told

    def load(self, *, in_hand: bool = True) -> None:
        """Notes that a load begins; forgets earlier failures."""
        with self._lock:
            self.in_hand = in_hand
            if self.state is not State.HEALING:
                self.restarts.num_failed = 0
            self._take(Event.LOAD, Cause.NONE, LOADING)

    def ready(self) -> None:
        with self._lock:
            self.in_hand = False
            if self.state is not State.READY:
                has_died = self.state is State.HEALING and self.cause is not Cause.SERVER_ENDED
                self.generation += 1
                self.num_restarts += has_died and self._is_counted
                self.restarts.lives()
            self._is_counted = False
            self._take(Event.READY, Cause.NONE, "")

    def died(self, cause: Cause, reason: str) -> None:
        """Notes that one of its processes died; the caller has to bring it back."""
        with self._lock:
            self.ready()  # else it had not been looked at since
            self.in_hand = True
            self._take(Event.DIED, cause, reason)

    def count_death(self) -> float:
        """Counts a death that unloaded a version. Returns the seconds until it is loaded again."""
        with self._lock:
            self.num_deaths += 1
            self._is_counted = True
            self.last_death = LastDeath(next(self._numbers), self.cause, self.reason)
            return self.restarts.died()

    def load_failed(self, cause: Cause, reason: str) -> float | None:
        """Seconds until the next try; None if it was the last. A load that was killed from outside
        has not failed: it is tried again for ever, later each time.
        """
        with self._lock:
            if cause is Cause.KILLED:
                delay_s: float | None = self.restarts.next_delay_s()
            elif self.state is State.HEALING:
                delay_s = self.restarts.failed()
                num = self.restarts.num_failed
                if delay_s is None:
                    reason += f"; given up after {times(num, 'failed load')} in a row"
            else:
                delay_s = self.restarts.failed(_AFTER_DEATHS * (cause in _DEATHS))
            if delay_s is None:
                self.lost(cause, reason)
            else:
                self.note(cause, reason, FAILED_TO_LOAD)
            return delay_s

    def lost(self, cause: Cause, reason: str) -> None:
        """Notes that a load failed and is not tried again by itself."""
        with self._lock:
            self.in_hand = False
            self._take(Event.LOAD_FAILED, cause, reason)

    def leave(self) -> None:
        """Notes that an unload of ours begins; ``unloaded`` or ``stays`` ends it."""
        with self._lock:
            self._take(Event.UNLOAD, Cause.NONE, "is being unloaded")
            self.in_hand |= self.state is State.LEAVING

    def stays(self) -> None:
        """Notes the end of an unload; one that was not unloaded is ready still."""
        with self._lock:
            if self.state is State.LEAVING:
                self.ready()

    def unloaded(self, reason: str = NOT_LOADED) -> None:
        with self._lock:
            self.in_hand = False
            self._take(Event.UNLOADED, Cause.NONE, reason)

    def server_ended(self) -> None:
        with self._lock:
            self.in_hand = False
            self._take(Event.SERVER_ENDED, Cause.SERVER_ENDED, LOADING)

    def see(self, seen: Seen) -> None:
        with self._lock:
            if self.in_hand:
                return
            if seen.is_ready:
                self.ready()
            elif seen.is_loading:
                if self.state is State.READY:
                    self.unloaded()
                self.load(in_hand=False)
            elif self.state in (State.LOADING, State.HEALING):
                self.lost(Cause.LOAD_FAILED, seen.reason)
            elif self.state in (State.READY, State.LEAVING):
                self.unloaded(seen.reason)

    def _take(self, event: Event, cause: Cause, reason: str) -> None:
        after = TRANSITIONS.get((self.state, event))
        if after is not None:
            self.state = after
            self.num_changes += 1
            self.note(cause, reason, FAILED_TO_LOAD if event is Event.LOAD_FAILED else "")

    def note(self, cause: Cause, reason: str, what: str) -> None:
        """Notes why it is not ready; ``what`` is said before the reason."""
        self.cause, self.reason = cause, reason
        self._prefix, self._retry = what, ""
        self._changed.set()


def worst_of(states: Iterable[ModelState]) -> ModelState:
    """The folder whose state is that of their entry."""
    return min(states, key=lambda one: _WORST_FIRST.index(one.state))


class ModelStates:
    """The states of one server's models; each begins asleep. ``changed`` is set when any of them
    changes.
    """

    def __init__(
        self, max_restarts: int = MAX_RESTARTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_restarts, self._clock = max_restarts, clock
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._models: dict[str, ModelState] = {}
        self.changed = threading.Event()
        self.num_server_deaths = 0
        self.server_death = LastDeath()

    def __getitem__(self, folder: str) -> ModelState:
        with self._lock:
            if folder not in self._models:
                restarts = Restarts(self._max_restarts, self._clock)
                self._models[folder] = ModelState(restarts, self._lock, self._numbers, self.changed)
            return self._models[folder]

    def of(self, folders: Iterable[str]) -> list[ModelState]:
        return [self[folder] for folder in folders]

    def are_ready(self, folders: Iterable[str]) -> bool:
        return all(model.state is State.READY for model in self.of(folders))

    def any(self, *states: State) -> bool:
        with self._lock:
            return any(model.state in states for model in self._models.values())

    @property
    def num_changes(self) -> dict[str, int]:
        """The number of each model's changes, to be given to ``see``."""
        with self._lock:
            return {folder: model.num_changes for folder, model in self._models.items()}

    def see(self, seen: Mapping[str, Seen], since: Mapping[str, int]) -> None:
        """Takes Triton's index, which was asked for when they had changed as often as ``since``
        says: of one that has changed meanwhile it does not count.
        """
        with self._lock:
            for folder, model in self._models.items():
                if since.get(folder) == model.num_changes:
                    model.see(seen.get(folder, Seen()))

    def load_failed(self, folders: Sequence[str], cause: Cause, reason: str) -> float | None:
        """Notes a failed load of an entry's ``folders``, the public one last, as a model's
        ``load_failed``.
        """
        with self._lock:
            delay_s = self[folders[-1]].load_failed(cause, reason)
            for model in self.of(folders[:-1]):
                if model.in_hand and delay_s is None:
                    model.lost(cause, reason)
                elif model.in_hand:
                    model.note(cause, reason, FAILED_TO_LOAD)
            return delay_s

    def server_died(self, cause: Cause, reason: str) -> None:
        with self._lock:
            self.num_server_deaths += 1
            self.server_death = LastDeath(next(self._numbers), cause, reason)
            self.server_ended()

    def server_ended(self) -> None:
        with self._lock:
            for model in self._models.values():
                model.server_ended()

    def last_death(self, folders: Iterable[str]) -> LastDeath:
        deaths = [self.server_death, *(model.last_death for model in self.of(folders))]
        return max(deaths, key=lambda death: death.number)

"""The thread that owns a model: takes submitted items, computes them step by step, and stops.
Callers submit from any thread; all tensor operations happen on this one, because two teams of
OpenMP threads on the same cores halve each other's speed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from hf_triton.runtime import log
from hf_triton.runtime.engine.thread_count import StepThreads
from hf_triton.runtime.errors import (
    DeviceLostError,
    LoadError,
    OverloadedError,
    RuntimeModelError,
    place,
    reason,
)
from hf_triton.runtime.repeating import Repeating

# The thread shares the interpreter with those that read, decode and send. Python's own 5 ms would
# let each of them hold up a step: 5 to 11 % fewer tokens/s at 32 clients on 2 cores.
_SWITCH_INTERVAL_S = 0.0005
# The current step may exceed a stop's grace by this: max_num_batched_tokens take a second or
# two.
LAST_STEP_S = 5.0
_LOOK_EVERY_S = 1.0  # of the watchdog
UNLOADED = "the model was unloaded before it answered: try again later"

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Steps(Protocol[T_contra]):
    """The work of an engine; every method but ``give_up`` runs on the thread."""

    def prepare(self) -> None:
        """Loads and warms up once before serving. An exception fails the load."""

    def has_work(self) -> bool:
        """True if work is left beside newly submitted items; must not block."""

    def add(self, items: Sequence[T_contra]) -> None:
        """Takes newly submitted items, often none; called before each step."""

    def step(self) -> None:
        """Computes one step, and answers finished items. An exception ends the engine."""

    def end(self, items: Sequence[T_contra], error: Exception) -> None:
        """Answers the items that the last step left unfinished."""

    def give_up(self, items: Sequence[T_contra], error: Exception) -> None:
        """Answers unfinished items from another thread, while a step may still compute them."""


class EngineThread(Generic[T]):
    """One engine's thread, and the items submitted to it until they are released.

    ``stop_at_s`` is when a stop's grace ends, on the monotonic clock; ``on_news`` is called, with
    ``condition`` held, whenever the thread is to look at what came.
    """

    def __init__(self, name: str, steps: Steps[T], *, num_threads: int, watchdog_s: float) -> None:
        """No new items are taken while a step takes longer than ``watchdog_s``."""
        self.condition = threading.Condition()
        self.stop_at_s: float | None = None
        self.on_news: Callable[[], None] = lambda: None
        self.cpu_threads = StepThreads(num_threads)
        self._name, self._steps = name, steps
        # These three are guarded by the condition.
        self._unfinished: set[T] = set()
        self._submitted: list[T] = []
        self._ended = False
        self._prepared: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"{name}-engine", daemon=True)
        self.watchdog = Watchdog(watchdog_s, self._give_up_step)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_healthy(self) -> bool:
        """True while the engine accepts work and its thread makes progress."""
        return not self._refusal()

    @property
    def is_overdue(self) -> bool:
        return self.stop_at_s is not None and time.monotonic() >= self.stop_at_s

    @property
    def num_unfinished(self) -> int:
        return len(self._unfinished)

    def __contains__(self, item: T) -> bool:
        return item in self._unfinished

    def start(self) -> None:
        """Returns when the engine can serve; raises LoadError, or what preparing raised."""
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._thread.start()
        failure = self._prepared.exception()
        if failure is None:
            self.watchdog.start()
            return
        self._thread.join()
        if isinstance(failure, RuntimeModelError):
            raise failure
        # Out of memory, a broken checkpoint: the operator gets one line.
        raise LoadError(
            f"the {self._name} engine failed to start: {type(failure).__name__}: {reason(failure)}"
        ) from failure

    def check_running(self) -> None:
        """Raises OverloadedError where the engine is stopping, its thread has died or is stuck."""
        refusal = self._refusal()
        if refusal:
            raise OverloadedError(f"{refusal}: try again later")

    def submit(self, items: Sequence[T]) -> None:
        """Queues all or none: raises OverloadedError as ``check_running`` does."""
        with self.condition:
            self.check_running()
            self._unfinished.update(items)
            self._submitted += items
            self.wake()

    def wake(self) -> None:
        """Wakes the thread to take new items; called with the condition held."""
        self.condition.notify()
        self.on_news()

    def take_in(self) -> None:
        """Passes submitted items on; long steps call it too."""
        with self.condition:
            submitted, self._submitted = self._submitted, []
        self._steps.add(submitted)

    def renew_step(self) -> None:
        """Restarts the watchdog's time; called by a long step after each part."""
        self.end_step()
        self.watchdog.begin_step()

    def end_step(self) -> None:
        """Stops the watchdog's time; called by a step after its computation."""
        self.watchdog.end_step()
        self.cpu_threads.step_took(self.watchdog.last_step_s)

    def release(self, items: Iterable[T]) -> list[T]:
        """Removes finished items; returns those that were not removed before."""
        with self.condition:
            released = [item for item in items if item in self._unfinished]
            self._unfinished.difference_update(released)
            return released

    def unfinished(self) -> list[T]:
        with self.condition:
            return list(self._unfinished)

    def stop(self, grace_s: float = 0.0) -> None:
        """Takes no more, finishes what is here within ``grace_s``, fails the rest with
        OverloadedError, and ends the thread; a step that goes on for ``LAST_STEP_S`` more is left
        to itself.
        """
        with self.condition:
            if self.stop_at_s is None:
                self.stop_at_s = time.monotonic() + grace_s
            left_s = max(0.0, self.stop_at_s - time.monotonic())
            self.wake()
        if self.is_alive:
            self._thread.join(left_s + LAST_STEP_S)
        if self.is_alive:
            log.error(
                f"a step did not finish within {LAST_STEP_S:g} s of the unload: it is abandoned"
            )
            self._steps.give_up(self.unfinished(), OverloadedError(UNLOADED))
        self.watchdog.close()

    def _refusal(self) -> str:
        """The reason that no work is accepted; empty if it is."""
        if self.stop_at_s is not None:
            return "the model is being unloaded"
        if self._ended:
            return "the engine died, reload the model"
        return "the engine is stuck in a step" if self.watchdog.is_stuck else ""

    def _run(self) -> None:
        try:
            self.cpu_threads.start()
            self._steps.prepare()
        except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
            self._prepared.set_exception(error)
            return
        self._prepared.set_result(None)
        text = self._run_steps()
        with self.condition:
            self._ended = True
            self._submitted.clear()
        self._steps.end(self.unfinished(), OverloadedError(text))

    def _run_steps(self) -> str:
        """Computes until the engine is to stop; returns the error for the items that are left."""
        try:
            while self._wait_for_work():
                if self._steps.has_work():  # some of the new items were not cancelled
                    self.watchdog.begin_step()
                    try:
                        self._steps.step()
                    finally:
                        self.end_step()
        except BaseException as error:
            what, where = type(error).__name__, place(error)
            if isinstance(error, DeviceLostError):
                what = where = str(error)
            log.error(f"the thread of the {self._name} engine died: {where}")
            return f"the engine died: {what}: try again later"
        return UNLOADED

    def _wait_for_work(self) -> bool:
        """Waits for submitted items; returns False when the engine is to stop."""
        with self.condition:
            while not (self._submitted or self._steps.has_work() or self.stop_at_s is not None):
                self.condition.wait()
        self.take_in()
        return self.stop_at_s is None or (self._steps.has_work() and not self.is_overdue)

    def _give_up_step(self, stuck_s: float) -> None:
        """Called by the watchdog: answers all items of a step that may never end."""
        text = f"the engine is stuck: its step takes longer than {stuck_s:g} s (watchdog_s)"
        log.error(text)
        self._steps.give_up(self.unfinished(), OverloadedError(f"{text}: try again later"))


class Watchdog(Repeating):
    """Times the steps. Calls ``give_up`` from its own thread once for each that takes longer than
    ``limit_s``, for a step may never end: a hung GPU, a waiting driver.
    """

    def __init__(self, limit_s: float, give_up: Callable[[float], None]) -> None:
        super().__init__("watchdog", self.look)
        self.limit_s, self._give_up = limit_s, give_up
        self._began_s: float | None = None
        self._given_up_s: float | None = None  # when the last step began that was given up
        self.last_step_s = 0.0

    @property
    def is_stuck(self) -> bool:
        return self._is_late(self._began_s)

    def begin_step(self) -> None:
        self._began_s = time.monotonic()

    def end_step(self) -> None:
        if self._began_s is not None:
            self.last_step_s = time.monotonic() - self._began_s
        self._began_s = None

    def look(self) -> float:
        began_s = self._began_s
        if began_s != self._given_up_s and self._is_late(began_s):
            self._given_up_s = began_s
            self._give_up(self.limit_s)
        return min(_LOOK_EVERY_S, self.limit_s / 4)

    def _is_late(self, began_s: float | None) -> bool:
        return began_s is not None and time.monotonic() - began_s > self.limit_s

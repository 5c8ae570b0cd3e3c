"""What every engine is: a bounded queue in front of one thread that owns the model.

Callers submit from any thread; everything with tensors happens on the engine's own, because in one
process only one thread may run parallel torch operations: two teams of OpenMP threads on the same
cores halve each other's speed. Knows neither Triton nor how text is generated.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from hf_runtime import log
from hf_runtime.devices.device import check_all_compute
from hf_runtime.engine.watchdog import Watchdog
from hf_runtime.errors import EngineError, OverloadedError, RequestError, place, reason

from ..lora.linear import Adapters
from ..options import Options
from ..sequence.sequence import Sequence
from .deadlines import Deadlines
from .delivery import Delivery
from .metrics import EngineMetrics


@dataclass(frozen=True)
class EngineSetup:
    """What an engine is made of. ``prepare`` may change the model for speed; it runs on the
    engine's thread. ``adapters`` are those that requests may name; only the in-flight engine takes
    any. ``sending_share`` of the time is what sending streams' tokens may take.
    """

    model: Any
    options: Options
    device: torch.device
    eos_token_ids: frozenset[int]
    num_threads: int
    free_bytes: Callable[[torch.device], int]
    prepare: Callable[[Any], object]
    adapters: Adapters | None = None
    sending_share: float = 1.0


class Engine(ABC):
    """A thread that generates for the sequences submitted to it and answers each exactly once."""

    name = ""

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        self._check_device = partial(check_all_compute, setup.model)
        self.metrics = EngineMetrics()
        self._condition = threading.Condition()
        # These four are guarded by the condition.
        self._unfinished: set[Sequence] = set()
        self._submitted: list[Sequence] = []
        self._cancelled: list[Sequence] = []
        self._stop_at_s: float | None = None
        self._deadlines = Deadlines()
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"{self.name}-engine", daemon=True)
        self._delivery = Delivery(setup.sending_share)
        self._watchdog = Watchdog(setup.options.watchdog_s, self._give_up)

    @property
    @abstractmethod
    def max_num_seqs(self) -> int:
        """The most sequences generated at once."""

    @property
    @abstractmethod
    def max_model_len(self) -> int:
        """The most tokens of prompt and output together."""

    @property
    @abstractmethod
    def description(self) -> str:
        """How the engine is set up, for the load's log line."""

    @property
    @abstractmethod
    def gauges(self) -> dict[str, int]:
        """What is in use at this moment, by name; may be read from any thread."""

    @abstractmethod
    def _prepare(self) -> None:
        """All that is done once before serving; an exception fails the load."""

    @abstractmethod
    def _has_work(self) -> bool:
        """True while sequences wait or run."""

    @abstractmethod
    def _step(self) -> None:
        """Computes one step, publishes its tokens; an exception fails those it was about."""

    @abstractmethod
    def _add(self, sequences: Iterable[Sequence]) -> None:
        """Takes newly submitted sequences."""

    @abstractmethod
    def _remove(self, sequences: list[Sequence]) -> None:
        """Forgets sequences that ended before they were finished, whether they run or wait."""

    @abstractmethod
    def _drain(self) -> list[Sequence]:
        """Gives back every sequence that waits or runs and forgets them."""

    @abstractmethod
    def _drain_running(self) -> list[Sequence]:
        """The same for those that the last step was about, not for those that wait."""

    @property
    def is_healthy(self) -> bool:
        """Whether the engine takes requests and its thread gets on with them."""
        return not self._ended and self._stop_at_s is None and not self._watchdog.is_stuck

    @property
    def last_step_s(self) -> float:
        """How long the last step took, in seconds."""
        return self._watchdog.last_step_s

    def start(self) -> None:
        """Starts the thread, waits until the engine can serve; raises what preparing it raised."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            self._delivery.stop()
            raise self._failure
        self._watchdog.start()

    def check_length(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raises RequestError, with both numbers, where prompt and output pass the context."""
        if num_prompt_tokens + max_tokens > self.max_model_len:
            raise RequestError(
                f"max_tokens: the prompt has {num_prompt_tokens} tokens and max_tokens is "
                f"{max_tokens}, together {num_prompt_tokens + max_tokens}; this model's context "
                f"holds {self.max_model_len}"
            )

    def default_max_tokens(self, num_prompt_tokens: int) -> int:
        """Output length of a request that sets none: the option's, or what the context has left."""
        left = self.max_model_len - num_prompt_tokens
        return max(1, min(self.setup.options.default_max_tokens, left))

    def submit(self, sequences: list[Sequence]) -> None:
        """Queues a request's sequences, all of them or none.

        Raises:
            OverloadedError: the queue has no room for them, or the engine is stopping or stuck.
        """
        with self._condition:
            refusal = self._refusal(len(sequences))
            if refusal:
                self.metrics.num_refused += 1
                raise OverloadedError(f"{refusal}: try again later")
            self._unfinished.update(sequences)
            self._submitted += sequences
            self._wake()

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """Ends sequences before the next step; those that are finished already are left alone."""
        with self._condition:
            self._cancelled += sequences
            self._wake()

    def stop(self, grace_s: float = 0.0) -> None:
        """Takes no more requests, finishes those it has within ``grace_s``, fails the others, and
        ends the thread.
        """
        with self._condition:
            if self._stop_at_s is None:
                self._stop_at_s = time.monotonic() + grace_s
            self._wake()
        if self._thread.is_alive():
            self._thread.join()
        self._watchdog.stop()
        self._delivery.stop()

    @property
    def num_unfinished(self) -> int:
        """How many sequences run or wait."""
        return len(self._unfinished)

    def _wake(self) -> None:
        """Has the thread look at what came; called with the condition held."""
        self._condition.notify()

    def _refusal(self, num_sequences: int) -> str:
        """Why a request is not taken; empty where it is."""
        if self._stop_at_s is not None or self._ended:
            return "the model is being unloaded"
        if self._watchdog.is_stuck:
            return "the engine is stuck in a step"
        max_queue_size = self.setup.options.max_queue_size
        room = self.max_num_seqs + max_queue_size - len(self._unfinished)
        if num_sequences <= room:
            return ""
        return (
            f"the queue is full: {len(self._unfinished)} sequences run or wait and {room} more fit "
            f"(max_num_seqs {self.max_num_seqs} + max_queue_size {max_queue_size}), got "
            f"{num_sequences}"
        )

    def _run(self) -> None:
        torch.set_num_threads(self.setup.num_threads)
        try:
            self._prepare()
        except Exception as error:
            # Handed to start(), which raises it.
            self._failure = error
            return
        finally:
            self._ready.set()
        try:
            while self._wait_for_work():
                if self._has_work():  # not all that came was cancelled at once
                    self._watchdog.begin_step()
                    self._guarded_step()
                    self._watchdog.end_step()
            why = "the model was unloaded before it answered"
        except BaseException as error:
            log.error(f"the thread of the {self.name} engine died: {place(error)}")
            why = f"the engine died: {type(error).__name__}"
        self._fail_all(OverloadedError(f"{why}: try again later"))

    def _guarded_step(self) -> None:
        try:
            self._step()
        except Exception as error:
            log.error(f"a step of the {self.name} engine failed: {place(error)}")
            text = f"generating failed: {type(error).__name__}: {reason(error)}"
            # All where the step came to no sequence, or it would be tried for ever.
            self._fail(self._drain_running() or self._drain(), EngineError(text))
            self._check_device()  # else every later step fails too, and the model stays ready

    def _wait_for_work(self) -> bool:
        """Takes what callers submitted and cancelled; False when the engine is to stop."""
        with self._condition:
            while not (self._submitted or self._cancelled or self._has_work()):
                if self._stop_at_s is not None:
                    return False
                self._condition.wait()
            stop_at_s = self._stop_at_s
        self._tend()
        return stop_at_s is None or (self._has_work() and time.monotonic() < stop_at_s)

    def _tend(self) -> None:
        """Takes what was submitted; ends what was cancelled and what has run out of time."""
        with self._condition:
            submitted, self._submitted = self._submitted, []
            cancelled, self._cancelled = self._cancelled, []
        self._add(submitted)
        self._deadlines.add(submitted)
        ended = self._end(cancelled, "cancelled")
        ended += self._end(self._deadlines.passed(time.monotonic()), "timeout")
        if ended:
            self._remove(ended)
            self._publish(ended)

    def _end(self, sequences: Iterable[Sequence], finish_reason: str) -> list[Sequence]:
        """Ends those of the sequences that go on; returns them."""
        going = [s for s in dict.fromkeys(sequences) if s.finish_reason is None]
        going = [s for s in going if s in self._unfinished]
        for sequence in going:
            sequence.end(finish_reason)
        return going

    def _publish(self, sequences: Iterable[Sequence]) -> None:
        """Frees the places of finished sequences and hands on the news of those and of streams."""
        sequences = list(sequences)
        finished = [s for s in sequences if s.finish_reason is not None]
        if finished:
            self._release(finished)
        self.metrics.published(sequences)
        updates = [
            s.update() for s in sequences if s.finish_reason is not None or s.recipient.streams
        ]
        if updates:
            self._delivery.put(updates)

    def _release(self, sequences: Iterable[Sequence]) -> None:
        with self._condition:
            self._unfinished.difference_update(sequences)

    def _fail_all(self, error: Exception) -> None:
        with self._condition:
            self._ended = True
            submitted, self._submitted = self._submitted, []
        self._fail([*self._drain(), *submitted], error)
        # Whatever the engine itself lost sight of when it died.
        self._fail(list(self._unfinished), error)

    def _fail(self, sequences: list[Sequence], error: Exception) -> None:
        self._release(sequences)
        for sequence in sequences:
            sequence.finish_reason = "error"
            sequence.recipient.fail(error)
        self.metrics.ended(sequences)

    def _give_up(self, stuck_s: float) -> None:
        """Called by the watchdog: nobody waits for a step that may never end."""
        text = f"the engine is stuck: its step takes longer than {stuck_s:g} s (watchdog_s)"
        log.error(f"{self.name}: {text}")
        with self._condition:
            waiting = list(self._unfinished)
            self._cancelled += waiting  # should the step end after all
        for sequence in waiting:
            sequence.recipient.fail(OverloadedError(f"{text}: try again later"))

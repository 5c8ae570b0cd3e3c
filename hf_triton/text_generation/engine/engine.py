"""The base of every engine: a bounded queue in front of one thread that owns the model. Knows
neither Triton nor how text is generated.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from hf_triton.runtime import log
from hf_triton.runtime.devices.device import check_devices_work
from hf_triton.runtime.engine.thread import UNLOADED, EngineThread
from hf_triton.runtime.errors import (
    EngineError,
    OverloadedError,
    RequestError,
    RuntimeModelError,
    place,
    reason,
)
from hf_triton.runtime.metrics.publishing import Family

from ..lora.linear import Adapters
from ..options import Options
from ..sequence.sequence import Recipient, Sequence, Update
from ..sequence.source import Source
from .metrics import EngineMetrics, families

_USUAL_TOKENS = 128  # of an output without max_tokens
LOOK_EVERY_S = 0.1  # whether the engine still runs

T = TypeVar("T")


@dataclass(frozen=True)
class EngineSetup:
    """``prepare`` may change the model for speed; it runs on the engine's thread. Only the
    in-flight engine takes ``adapters`` and computes by ``compiled`` loops, on a CPU.

    An encoder-decoder of sounds is tried with ``sources``, the longest first. ``trial_prompts``
    makes prompts with images or sounds. ``largest_prompt`` makes the one with the largest of them
    that has at most the given number of tokens, if there is one.
    """

    model: Any
    options: Options
    device: torch.device
    eos_token_ids: frozenset[int]
    num_threads: int
    free_bytes: Callable[[torch.device], int]
    prepare: Callable[[Any], object]
    adapters: Adapters | None = None
    sources: tuple[Source, ...] = ()
    compiled: bool = True
    trial_prompts: Callable[[], Items[tuple[list[int], Source]]] | None = None
    largest_prompt: Callable[[int], tuple[list[int], Source] | None] | None = None


class Engine(ABC):
    """Generates for the sequences submitted to it, on ``thread``, and answers each exactly once:
    ``max_num_seqs`` at once, of at most ``max_model_len`` tokens of prompt and output together.
    ``description`` tells how it is set up, for the load's log line. They are set when it is
    prepared.
    """

    name = ""
    max_num_seqs: int
    max_model_len: int
    max_source_len: int | None = None  # of an encoder's texts, beside max_model_len
    description: str
    resumes_streams = False  # takes sequences that begin with tokens of their output

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        own = getattr(getattr(setup.model, "generation_config", None), "max_new_tokens", None)
        self._own_tokens = setup.options.default_max_tokens or own
        self._check_device = partial(check_devices_work, setup.model)
        self.metrics = EngineMetrics()
        self.thread: EngineThread[Sequence] = EngineThread(
            self.name,
            self,
            num_threads=setup.num_threads,
            watchdog_s=setup.options.watchdog_s,
        )
        # Both are guarded by the thread's condition.
        self._cancelled: list[Sequence] = []
        self._changes: list[tuple[Callable[[], None], Future[None]]] = []
        self._next_deadline_s = math.inf
        self._delivery = Delivery()

    @property
    @abstractmethod
    def gauges(self) -> dict[str, int]:
        """Numbers in use at this moment, by name; may be read from any thread."""

    @property
    def adapters(self) -> Mapping[str, int]:
        """The keys of adapters by the names that requests may give, also once they have changed."""
        return {} if self.setup.adapters is None else self.setup.adapters

    @property
    def used_adapters(self) -> set[int]:
        """The keys of adapters that unfinished sequences need."""
        return {sequence.adapter_key for sequence in self.thread.unfinished()}

    def families(self) -> Iterator[Family]:
        """Counts and gauges by their Prometheus names; may be read from any thread."""
        adapters = tuple(self.adapters)
        yield from families(self.metrics, self.gauges, adapters)
        yield from self.thread.cpu_threads.families()

    @abstractmethod
    def prepare(self) -> None:
        """All that is done once before serving; an exception fails the load."""

    @abstractmethod
    def _has_work(self) -> bool:
        """True while sequences wait or run."""

    @abstractmethod
    def _step(self) -> None:
        """Computes one step, publishes its tokens; an exception fails those it was about."""

    @abstractmethod
    def _add(self, sequences: Iterable[Sequence]) -> None:
        """Takes submitted sequences."""

    @abstractmethod
    def _remove(self, sequences: list[Sequence]) -> None:
        """Forgets sequences that were ended from outside, whether they run or wait."""

    @abstractmethod
    def _drain(self) -> list[Sequence]:
        """Forgets and returns every sequence that waits or runs."""

    @abstractmethod
    def _drain_running(self) -> list[Sequence]:
        """Forgets and returns those that run."""

    @property
    def is_healthy(self) -> bool:
        return self.thread.is_healthy

    def start(self) -> None:
        """Waits until the engine can serve; raises LoadError or what preparing it raised."""
        try:
            self.thread.start()
        except RuntimeModelError:
            self._delivery.stop()
            raise

    def check_length(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raises RequestError for too long a prompt or output, or both together in a context."""
        if self.max_source_len is not None:
            for field, got, most in (
                ("text_input", num_prompt_tokens, self.max_source_len),
                ("max_tokens", max_tokens, self.max_model_len),
            ):
                if got > most:
                    raise RequestError(f"{field}: got {got} tokens, allowed: at most {most}")
        elif num_prompt_tokens + max_tokens > self.max_model_len:
            raise RequestError(
                f"max_tokens: the prompt has {num_prompt_tokens} tokens and max_tokens is "
                f"{max_tokens}, together {num_prompt_tokens + max_tokens}; this model's context "
                f"holds {self.max_model_len}"
            )

    def check_prompt_logprobs(self, *, with_source: bool) -> None:
        """Raises RequestError where such a prompt is computed in one piece."""
        if not self._chunked_prefill(with_source=with_source):
            raise RequestError(
                "prompt_logprobs: not available: this model computes such a prompt in one piece"
            )

    def _chunked_prefill(self, *, with_source: bool) -> bool:
        return False

    def output_length(self, num_prompt_tokens: int, asked: int | None, *, clamps: bool) -> int:
        """The most tokens of an output: ``asked``, else the option's or the model's own number,
        else 128. With ``clamps`` it is at most what the context leaves, and all of it for 128.
        """
        num_before = num_prompt_tokens if self.max_source_len is None else 0
        left = max(1, self.max_model_len - num_before)
        if asked is not None:
            return min(asked, left) if clamps else asked
        return min(self._own_tokens or (left if clamps else _USUAL_TOKENS), left)

    def submit(self, sequences: list[Sequence]) -> None:
        """Queues a request's sequences, all of them or none.

        Raises:
            OverloadedError: the queue has no room for them, or the engine is stopping or stuck.
            RequestError: the queue never has room for so many.
        """
        with self.thread.condition:
            try:
                self._check_room(len(sequences))
                self.thread.submit(sequences)
            except OverloadedError:
                self.metrics.num_refused += 1
                raise

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        with self.thread.condition:
            self._cancelled += sequences
            self.thread.wake()

    def stop(self, grace_s: float = 0.0) -> None:
        """Finishes its requests within ``grace_s``, fails the others, and ends the thread."""
        self.thread.stop(grace_s)
        self._delivery.stop()

    def has_work(self) -> bool:
        return bool(self._cancelled or self._changes) or self._has_work()

    def between_steps(self, change: Callable[[], None]) -> None:
        """Calls ``change`` on the engine's thread before the next step, and waits for that.
        Raises what it raises; OverloadedError where the engine stops or hangs: then it is never
        called.
        """
        done: Future[None] = Future()
        with self.thread.condition:
            going = [one for one in self._changes if not one[1].cancelled()]
            self._changes = [*going, (change, done)]
            self.thread.wake()
        self._wait_for(done)

    def _wait_for(self, done: Future[T]) -> T:
        """The result, unless the engine stops or hangs: cancels it then, raises OverloadedError."""
        while not done.done():
            wait([done], LOOK_EVERY_S)
            try:
                self.thread.check_running()
            except OverloadedError:
                if done.cancel():
                    raise
        return done.result()

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Takes what was submitted; ends what was cancelled and what has run out of time."""
        with self.thread.condition:
            cancelled, self._cancelled = self._cancelled, []
            changes, self._changes = self._changes, []
        for change, done in changes:
            if done.set_running_or_notify_cancel():
                try:
                    change()
                except Exception as error:
                    done.set_exception(error)
                else:
                    done.set_result(None)
        self._add(self._with_adapters(sequences))
        timed = [one.deadline_s for one in sequences if one.deadline_s is not None]
        self._next_deadline_s = min((self._next_deadline_s, *timed))
        ended = self._end(cancelled, "cancelled")
        ended += self._end(self._overdue(), "timeout")
        if self.thread.is_overdue:
            ended += self._end(self.thread.unfinished(), "error", OverloadedError(UNLOADED))
        if ended:
            self._remove(ended)
            self._publish(ended)

    def step(self) -> None:
        """Computes one step; if it fails, its sequences fail too."""
        if not self._has_work():
            return  # what there was has just been cancelled
        try:
            self._step()
        except Exception as error:
            log.error(f"a step of the {self.name} engine failed: {place(error)}")
            text = f"generating failed: {type(error).__name__}: {reason(error)}"
            # All where the step came to no sequence, or it would be tried for ever.
            self._fail(self._drain_running() or self._drain(), EngineError(text))
            self._check_device()  # else every later step fails too, and the model stays ready

    def end(self, sequences: Iterable[Sequence], error: Exception) -> None:
        self._drain()
        self._fail(sequences, error)

    def give_up(self, sequences: Iterable[Sequence], error: Exception) -> None:
        """Fails requests of a step that may never end; if it does, their sequences end then."""
        self.cancel(sequences)
        for sequence in sequences:
            sequence.recipient.fail(error)

    def _check_room(self, num_sequences: int) -> None:
        """Raises OverloadedError for more than fit, RequestError for more than ever do."""
        max_queue_size = self.setup.options.max_queue_size
        num_unfinished = self.thread.num_unfinished
        most = self.max_num_seqs + max_queue_size
        parts = f"max_num_seqs {self.max_num_seqs} + max_queue_size {max_queue_size}"
        if num_sequences > most:
            raise RequestError(
                f"n: got {num_sequences} sequences, n of each prompt, allowed: at most {most} in "
                f"one request ({parts})"
            )
        room = most - num_unfinished
        if num_sequences > room:
            self.thread.check_running()  # the graver reason
            raise OverloadedError(
                f"the queue is full: {num_unfinished} sequences run or wait and {room} more fit "
                f"({parts}), got {num_sequences}: try again later"
            )

    def _with_adapters(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Gives each sequence the adapter of its name; fails those whose adapter was removed."""
        going = []
        for sequence in sequences:
            if sequence.lora_name is not None:
                sequence.adapter_key = self.adapters.get(sequence.lora_name, 0)
            if sequence.lora_name is None or sequence.adapter_key:
                going.append(sequence)
            else:
                self._fail([sequence], RequestError("lora_name: this adapter has been removed"))
        return going

    def _overdue(self) -> list[Sequence]:
        """The sequences whose time is up; looks at all of them only where a deadline has passed."""
        now_s = time.monotonic()
        if now_s < self._next_deadline_s:
            return []
        timed = [(s, s.deadline_s) for s in self.thread.unfinished() if s.deadline_s is not None]
        self._next_deadline_s = min((d for _, d in timed if d > now_s), default=math.inf)
        return [sequence for sequence, deadline_s in timed if deadline_s <= now_s]

    def _end(
        self, sequences: Iterable[Sequence], finish_reason: str, error: Exception | None = None
    ) -> list[Sequence]:
        """Ends those of the sequences that go on; returns them."""
        different = dict.fromkeys(sequences)
        going = [s for s in different if s.finish_reason is None and s in self.thread]
        for sequence in going:
            sequence.end(finish_reason, error)
        return going

    def _publish(self, sequences: Iterable[Sequence]) -> None:
        """Frees the places of finished sequences and delivers the news of those and of streams."""
        sequences = list(sequences)
        finished = [s for s in sequences if s.finish_reason is not None]
        if finished:  # most steps end no sequence, and need not wait for the lock
            self.thread.release(finished)
        self.metrics.published(sequences)
        updates = [
            s.update() for s in sequences if s.finish_reason is not None or s.recipient.streams
        ]
        if updates:
            self._delivery.put(updates)

    def _fail(self, sequences: Iterable[Sequence], error: Exception) -> None:
        failed = self.thread.release(sequences)
        for sequence in failed:
            sequence.finish_reason = "error"
            sequence.forget()
            sequence.recipient.fail(error)
        self.metrics.ended(failed)


class Delivery:
    """A thread that decodes, packs and sends outputs while the engine computes its next step. When
    sending falls behind, the news of several steps goes out together. ``stop`` returns when
    everything that was put in has been sent.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[list[Update] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)
        self._thread.start()

    def put(self, updates: list[Update]) -> None:
        self._queue.put(updates)

    def stop(self) -> None:
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        ends = False
        while not ends:
            updates: list[Update] = []
            news = self._queue.get()
            with contextlib.suppress(queue.Empty):
                while news is not None:
                    updates += news
                    news = self._queue.get_nowait()
            ends = news is None
            for update in updates:
                recipient = update.sequence.recipient
                _deliver(recipient, partial(recipient.take, update))
            for recipient in dict.fromkeys(update.sequence.recipient for update in updates):
                _deliver(recipient, recipient.flush)


def _deliver(recipient: Recipient, action: Callable[[], None]) -> None:
    """A tokenizer's failure, or our own, is one request's, not its neighbours'."""
    try:
        action()
    except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
        text = f"an output could not be delivered: {place(error)}"
        log.error(text, recipient.request_id)
        recipient.fail(EngineError(f"decoding the output failed: {reason(error)}"))

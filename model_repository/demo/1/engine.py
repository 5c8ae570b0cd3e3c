"""What every engine is: a bounded queue in front of one thread that owns the model.

Callers submit from any thread; everything with tensors happens on the engine's own, because in one
process only one thread may run parallel torch operations: two teams of OpenMP threads on the same
cores halve each other's speed. Knows neither Triton nor how text is generated.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from hf_runtime import log
from hf_runtime.errors import EngineError, OverloadedError, RequestError, place, reason

from .options import Options
from .sequence import Sequence


@dataclass(frozen=True)
class EngineSetup:
    """What an engine is made of. ``prepare`` may change the model for speed; it runs on the
    engine's thread.
    """

    model: Any
    options: Options
    device: torch.device
    eos_token_ids: frozenset[int]
    num_threads: int
    free_bytes: Callable[[torch.device], int]
    prepare: Callable[[Any], object]


class Engine(ABC):
    """A thread that generates for the sequences submitted to it and answers each exactly once."""

    name = ""

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        self._condition = threading.Condition()
        self._submitted: list[Sequence] = []
        self._num_unfinished = 0
        self._stopping = False
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"{self.name}-engine", daemon=True)

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

    @abstractmethod
    def _prepare(self) -> None:
        """All that is done once before serving; an exception fails the load."""

    @abstractmethod
    def _has_work(self) -> bool:
        """True while sequences wait or run."""

    @abstractmethod
    def _step(self) -> None:
        """Computes one step, answers what is finished; an exception fails those it was about."""

    @abstractmethod
    def _add(self, sequences: Iterable[Sequence]) -> None:
        """Takes newly submitted sequences."""

    @abstractmethod
    def _drain(self) -> list[Sequence]:
        """Gives back every sequence that waits or runs and forgets them."""

    @abstractmethod
    def _drain_running(self) -> list[Sequence]:
        """The same for those that the last step was about, not for those that wait."""

    def start(self) -> None:
        """Starts the thread, waits until the engine can serve; raises what preparing it raised."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

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
            OverloadedError: the queue has no room for them, or the engine is stopping.
        """
        max_queue_size = self.setup.options.max_queue_size
        with self._condition:
            if self._stopping:
                raise OverloadedError("the model is being unloaded: try again later")
            room = self.max_num_seqs + max_queue_size - self._num_unfinished
            if len(sequences) > room:
                raise OverloadedError(
                    f"the queue is full: {self._num_unfinished} sequences run or wait and {room} "
                    f"more fit (max_num_seqs {self.max_num_seqs} + max_queue_size "
                    f"{max_queue_size}), got {len(sequences)}: try again later"
                )
            self._num_unfinished += len(sequences)
            self._submitted += sequences
            self._condition.notify()

    def stop(self) -> None:
        """Ends the thread; what still runs or waits is answered with an error."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()

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
        while self._take_submitted():
            try:
                self._step()
            except Exception as error:
                log.error(f"a step of the {self.name} engine failed: {place(error)}")
                self._fail_step(error)
        self._fail_all(
            OverloadedError("the model was unloaded before it answered: try again later")
        )

    def _take_submitted(self) -> bool:
        """Waits for work; False when the engine is to stop."""
        with self._condition:
            while not (self._submitted or self._stopping or self._has_work()):
                self._condition.wait()
            submitted, self._submitted = self._submitted, []
        self._add(submitted)
        return not self._stopping

    def _answer(self, finished: list[Sequence]) -> None:
        """Frees the sequences' places, then answers them."""
        self._release(len(finished))
        for sequence in finished:
            sequence.finish()

    def _release(self, num_sequences: int) -> None:
        with self._condition:
            self._num_unfinished -= num_sequences

    def _fail_step(self, error: Exception) -> None:
        """Fails a step's own requests; all where it came to none, or it would be tried for ever."""
        text = f"generating failed: {type(error).__name__}: {reason(error)}"
        self._fail(self._drain_running() or self._drain(), EngineError(text))

    def _fail_all(self, error: Exception) -> None:
        with self._condition:
            submitted, self._submitted = self._submitted, []
        self._fail(self._drain() + submitted, error)

    def _fail(self, sequences: list[Sequence], error: Exception) -> None:
        self._release(len(sequences))
        for sequence in sequences:
            sequence.on_finish(error)

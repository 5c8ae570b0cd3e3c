"""Takes requests in and follows them until they are answered.

A request is read on one of a few threads of its own kind (images and sounds take long to decode),
computed by the engine, and answered from those threads again (so do images to encode). Knows the
engine as a place to submit work to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from hf_runtime import log
from hf_runtime.errors import (
    CancelledError,
    EngineError,
    OverloadedError,
    RequestError,
    RuntimeModelError,
    place,
)
from hf_runtime.plain_request import RequestLike, tensor_of
from hf_runtime.responder import Array, Responder, strings
from hf_runtime.tensors import RequestFields

from . import request as requests
from .answers import to_json
from .engine import PipelineEngine, Work
from .request import ReadRow, RequestReader, Taken

_MIB = 1024 * 1024


class Reception:
    """The open requests of one engine."""

    def __init__(
        self,
        reader: RequestReader,
        engine: PipelineEngine,
        *,
        names: frozenset[str],
        max_queue_size: int,
        max_input_mib: float,
        num_threads: int,
        batched: bool,
    ) -> None:
        """``names`` are the call parameters that a request may give as its own parameters;
        ``batched`` where max_batch_size is above 0.
        """
        self._reader, self._engine, self._names = reader, engine, names
        self._max_queue_size, self._max_input_mib = max_queue_size, max_input_mib
        self._batched = batched
        self._pool = ThreadPoolExecutor(
            num_threads, "pipeline-reader", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._num_open = 0
        self._closing = False
        self._changed = threading.Condition()

    @property
    def num_open(self) -> int:
        """Requests that are read, wait, are computed or are being answered."""
        return self._num_open

    def take(self, request: RequestLike, listed: Iterable[str], responder: Responder) -> None:
        """Starts one request, or answers it with what is wrong with it; never raises.

        Its tensors are not read after this returns. There is one output, whatever is ``listed``.
        """
        refusal = self._admit()
        if refusal:
            self._engine.metrics.num_refused += 1
            responder.fail(OverloadedError(f"{refusal}: try again later"))
            return
        self._guarded(responder, lambda: self._accept(request, responder))

    def drain(self, grace_s: float) -> None:
        """Takes no more requests; those that it has are answered when this returns."""
        with self._changed:
            self._closing = True
            deadline_s = time.monotonic() + grace_s
            while self._num_open and time.monotonic() < deadline_s:
                self._changed.wait(max(0.0, deadline_s - time.monotonic()))

    def close(self) -> None:
        """Ends the threads once everything that they were given is done."""
        self._pool.shutdown()

    def _admit(self) -> str:
        """Counts one more open request, or says why not."""
        with self._changed:
            if self._closing or not self._engine.is_healthy:
                return "the model is being unloaded"
            if self._num_open >= self._max_queue_size:
                return f"the queue is full: {self._num_open} requests (max_queue_size)"
            self._num_open += 1
            return ""

    def _accept(self, request: RequestLike, responder: Responder) -> None:
        fields = RequestFields(request, tensor_of, batched=self._batched)
        fields.check_parameters({*self._names, *requests.INPUTS})
        taken = requests.take(fields)
        if taken.num_bytes > self._max_input_mib * _MIB:
            raise RequestError(
                f"got {taken.num_bytes / _MIB:.1f} MiB of input, at most {self._max_input_mib:g} "
                "(max_input_mib)"
            )
        self._pool.submit(self._guarded, responder, lambda: self._begin(taken, responder))

    def _begin(self, taken: Taken, responder: Responder) -> None:
        rows = [self._reader.read(row, taken.parameters) for row in taken.rows]
        answer = _Answer(rows, lambda results: self._finish(rows, results, responder))
        works = []
        for index, row in enumerate(rows):
            items = [item for query in row.queries for item in query.items]
            done = answer.part(index)
            works.append(Work(items, row.parameters, row.key, done, responder.is_cancelled))
        for work in works:
            self._engine.submit(work)

    def _finish(
        self, rows: list[ReadRow], results: list[list[Any]] | Exception, responder: Responder
    ) -> None:
        """Called on the engine's thread."""
        self._pool.submit(self._guarded, responder, lambda: self._deliver(rows, results, responder))

    def _deliver(
        self, rows: list[ReadRow], results: list[list[Any]] | Exception, responder: Responder
    ) -> None:
        if isinstance(results, Exception):
            raise results
        pairs = zip(rows, results, strict=True)
        texts = [text for row, found in pairs for text in _texts(row, found)]
        output: Array = strings(texts)
        shaped = output.reshape(len(rows), -1) if self._batched else output
        responder.send({"output": shaped}, final=True)
        self._ended("stop")

    def _guarded(self, responder: Responder, work: Callable[[], None]) -> None:
        """Does a part of one request; whatever goes wrong is its own answer."""
        try:
            work()
        except Exception as error:
            responder.fail(_answerable(error))
            self._ended(_finish_reason(error))

    def _ended(self, finish_reason: str) -> None:
        with self._changed:
            self._engine.metrics.finish_reasons[finish_reason] += 1
            self._num_open -= 1
            self._changed.notify_all()


class _Answer:
    """Collects a request's rows; ``done`` gets all of their results, or the first error, once."""

    def __init__(
        self, rows: list[ReadRow], done: Callable[[list[list[Any]] | Exception], None]
    ) -> None:
        self._results: dict[int, list[Any]] = {}
        self._num_rows, self._done, self._ended = len(rows), done, False

    def part(self, index: int) -> Callable[[list[Any] | Exception], None]:
        """Where the results of one row go; called on the engine's thread."""

        def done(results: list[Any] | Exception) -> None:
            if self._ended:
                return
            if isinstance(results, Exception):
                self._ended = True
                self._done(results)
                return
            self._results[index] = results
            if len(self._results) == self._num_rows:
                self._ended = True
                self._done([self._results[i] for i in range(self._num_rows)])

        return done


def _texts(row: ReadRow, results: list[Any]) -> list[str]:
    """A JSON text for each query of a row."""
    left = iter(results)
    found = []
    for query in row.queries:
        own = [next(left) for _ in query.items]
        found.append(to_json(own if query.is_list else own[0]))
    return found


def _answerable(error: Exception) -> Exception:
    if isinstance(error, RuntimeModelError):
        return error
    log.error(f"a request failed: {place(error)}")
    return EngineError(f"internal error: {type(error).__name__}")


def _finish_reason(error: Exception) -> str:
    if isinstance(error, CancelledError):
        return "cancelled"
    return "refused" if isinstance(error, RequestError | OverloadedError) else "error"

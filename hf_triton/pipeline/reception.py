"""Receives requests and follows them until they are answered. Reading (decoding images and sounds
is slow) and answering (so is encoding images) have a few threads each; the engine computes. Knows
the engine as a place to submit work to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from hf_triton.runtime.engine.reception import PooledReception
from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.metrics.publishing import Family
from hf_triton.runtime.request.file_threads import FileThreads, Reading
from hf_triton.runtime.request.open_requests import OpenRequests
from hf_triton.runtime.request.plain_request import RequestLike
from hf_triton.runtime.request.responder import Array, Responder, strings
from hf_triton.runtime.request.tensors import RequestFields

from . import request as requests
from .answers import to_json
from .engine import PipelineEngine, Work
from .options import Options
from .pipeline_metrics import families
from .request import ReadRow, RequestReader, Taken

_MIB = 1024 * 1024


class Reception(PooledReception):
    """The open requests of one engine."""

    def __init__(
        self,
        reader: RequestReader,
        engine: PipelineEngine,
        options: Options,
        *,
        names: frozenset[str],
        batched: bool,
        description: str = "",
        tokenizer: Any = None,
    ) -> None:
        """``names`` are arguments of the pipeline's call that a request may set;
        ``batched`` where max_batch_size is above 0.
        """
        self.engine = engine
        self._reader, self._names = reader, names
        self._max_input_mib = options.max_input_mib
        self._batched = batched
        num_threads = options.num_reader_threads
        self._files = FileThreads(num_threads)
        self._answering = ThreadPoolExecutor(
            num_threads, "pipeline-answers", initializer=torch.set_num_threads, initargs=(1,)
        )
        metrics = engine.metrics
        super().__init__(
            engine.thread,
            [self._files, self._answering],
            OpenRequests(
                options.max_queue_size, on_end=metrics.ended, on_turned_away=metrics.turned_away
            ),
            description=description,
            unload_grace_s=options.unload_grace_s,
            tokenizer=tokenizer,
        )

    def families(self) -> Iterator[Family]:
        """The engine's metrics, and the numbers of running and waiting requests."""
        running = self.engine.num_running
        waiting = max(0, self.num_open - running)
        yield from families(self.engine.metrics, running=running, waiting=waiting)
        yield from self.engine.thread.cpu_threads.families()

    def _accept(
        self, request: RequestLike, listed: frozenset[str], responder: Responder, **_: bool
    ) -> None:
        # There is one output, whatever is listed.
        fields = RequestFields(request, batched=self._batched)
        fields.check_parameters({*self._names, *requests.INPUTS})
        taken = requests.take(fields)
        if taken.num_bytes > self._max_input_mib * _MIB:
            raise RequestError(
                f"got {taken.num_bytes / _MIB:.1f} MiB of input, at most {self._max_input_mib:g} "
                "(max_input_mib)"
            )
        read = partial(self._read, taken, responder)
        fail = partial(self._requests.fail, responder)
        self._files.run(Reading(responder), taken.num_bytes, read, fail)

    def _read(self, taken: Taken, responder: Responder) -> Callable[[], None]:
        # Skip decoding what won't be computed.
        self._thread.check_running()
        rows = [self._reader.read(row, taken.parameters) for row in taken.rows]
        return partial(self._begin, rows, responder)

    def _begin(self, rows: list[ReadRow], responder: Responder) -> None:
        inputs = [given for row in rows for given in row.inputs()]
        done = partial(self._finish, rows, responder)
        self._thread.submit([Work(inputs, done, responder.is_cancelled, responder.request_id)])

    def _finish(
        self, rows: list[ReadRow], responder: Responder, results: list[Any] | Exception
    ) -> None:
        """Called on the engine's thread, and on the one that stops it."""
        deliver = partial(self._deliver, rows, results, responder)
        self._requests.run_on(self._answering, responder, deliver)

    def _deliver(
        self, rows: list[ReadRow], results: list[Any] | Exception, responder: Responder
    ) -> None:
        """Sends a JSON text for each query."""
        if isinstance(results, Exception):
            raise results
        left = iter(results)
        texts = []
        for query in (query for row in rows for query in row.queries):
            own = [next(left) for _ in query.items]
            texts.append(to_json(own if query.is_list else own[0]))
        output: Array = strings(texts)
        shaped = output.reshape(len(rows), -1) if self._batched else output
        responder.send({"output": shaped}, final=True)
        self._requests.end()

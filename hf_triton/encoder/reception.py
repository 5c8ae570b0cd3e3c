"""Receives requests and follows them until they are answered.

A short text is read and tokenised on the thread it arrives on, which takes less time than handing
it over. The engine batches it with others, and a sender thread answers, unless the engine sends
itself. So tokenisation overlaps the previous batch's forward, and nothing long stands between two
steps. Longer texts have threads of their own, and the longest ones others, so that no text waits
for a longer one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hf_triton.runtime.engine.reception import WorkReception
from hf_triton.runtime.errors import CancelledError
from hf_triton.runtime.metrics.publishing import Family
from hf_triton.runtime.metrics.work_metrics import encoder_families
from hf_triton.runtime.request.cancellation import has_left
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.responder import attempt_on
from hf_triton.runtime.request.tensors import RequestFields

from .encoder_loading import LoadedEncoder

_SHORT_TEXT_BYTES = 1024  # a fifth of a millisecond of a tokenizer's time
_LONG_TEXT_BYTES = 16 * 1024  # a millisecond or two
_LONG_TEXT_NICENESS = 15  # of 19: man 2 setpriority


def give_way() -> None:
    """Lowers the calling thread's priority: model threads synchronise in every operation, so one
    that shares its core with a long text delays all.
    """
    if Path("/proc/self/task").is_dir():  # only Linux has priorities of threads
        thread = threading.get_native_id()
        niceness = max(_LONG_TEXT_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


class Reception(WorkReception):
    def __init__(self, loaded: LoadedEncoder, *, batched: bool) -> None:
        self._task, self._batched, options = loaded.task, batched, loaded.options
        # Rust's own pool would take each text from the thread chosen for it here.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        num_long = max(1, options.num_tokenizer_threads // 4)
        self._short = ThreadPoolExecutor(options.num_tokenizer_threads - num_long, "tokenize")
        self._long = ThreadPoolExecutor(num_long, "tokenize-long", initializer=give_way)
        super().__init__(
            loaded.engine,
            (self._short, self._long),
            ThreadPoolExecutor(1, "delivery"),
            max_queue_size=options.max_queue_size,
            description=loaded.description,
            unload_grace_s=options.unload_grace_s,
            tokenizer=loaded.task.setup.tokenization.tokenizer,
        )

    def families(self) -> Iterable[Family]:
        yield from encoder_families(self._engine.metrics, self.num_open)
        yield from self._thread.cpu_threads.families()

    def _accept(self, request: Request) -> None:
        begin, num_bytes = partial(self._begin, request, time.monotonic()), request.num_bytes
        # Without an engine the reading thread does all the work, perhaps for long.
        if num_bytes <= _SHORT_TEXT_BYTES and self._thread.is_alive:
            begin()
            return
        pool = self._long if num_bytes > _LONG_TEXT_BYTES else self._short
        attempt_on(pool, request.responder, begin)

    def _begin(self, request: Request, arrived_s: float) -> None:
        responder = request.responder
        self._thread.check_running()  # skip tokenising what won't be computed
        waited_s = time.monotonic() - arrived_s
        if has_left(responder.is_cancelled, waited_s, responder.request_id):
            raise CancelledError("the caller has disconnected")
        fields = RequestFields(request.inputs, request.parameters, batched=self._batched)
        prepared = self._task.prepare(fields, frozenset(request.outputs))
        if request.call:
            request.call.tell_use(prompt_tokens=sum(map(len, prepared.encodings)))
        if prepared.encodings:
            self._submit(prepared.encodings, responder, prepared.answer, request.trace)
        else:
            responder.send(prepared.answer([]), final=True)

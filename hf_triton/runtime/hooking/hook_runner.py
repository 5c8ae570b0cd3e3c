"""Runs ``preprocess`` on requests and ``postprocess`` on their responses.

Every request is answered exactly once, whatever a hook does; a hook that fails fails its own
request only. Knows neither Triton nor the task.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy.typing as npt

from hf_triton.hooks import HookRequest, HookResponse

from .. import log
from ..errors import OverloadedError, RuntimeModelError, place
from ..request.declared_tensor import DeclaredTensor
from ..request.plain_request import PlainRequest
from ..request.request_ids import labelled
from ..request.responder import Responder, answer_failure
from .hook_file import HookFile

Work = Callable[[], None]

Array = npt.NDArray[Any]
PassOn = Callable[[PlainRequest, Iterable[str], Responder], None]

NUM_THREADS = 8
MAX_WAITING = 1024
_UNLOADING = "the model is being unloaded: try again"


class HookRunner:
    """Runs one model's hooks, on threads of their own."""

    def __init__(
        self,
        file: HookFile,
        inputs: Mapping[str, DeclaredTensor],
        outputs: Mapping[str, DeclaredTensor],
        *,
        batched: bool,
    ) -> None:
        self.file = file
        self.outputs = outputs
        self.sending: dict[HookedResponder, None] = {}  # whose postprocess has not returned yet
        self._inputs = inputs
        self._batched = batched
        self._preprocess_threads = HookThreads("preprocess")
        self.postprocess_threads = HookThreads("postprocess")
        self._open: dict[Responder, None] = {}  # changed one key at a time, which is atomic
        self._closing = False

    def receive(
        self,
        plain: PlainRequest,
        requested_outputs: Iterable[str],
        responder: Responder,
        pass_on: PassOn,
    ) -> None:
        """Calls ``pass_on`` with the preprocessed request, on another thread if there is a
        ``preprocess``.
        """
        request = HookRequest(
            plain.inputs,
            self._inputs,
            self._num_rows(plain),
            parameters=plain.parameter_values,
            outputs=tuple(requested_outputs),
        )
        if not self.file.defines("preprocess"):
            self._pass_on(plain, request, responder, pass_on)
        elif self._closing:
            responder.fail(OverloadedError(_UNLOADING))
        elif len(self._open) >= MAX_WAITING:
            responder.fail(
                OverloadedError(f"{MAX_WAITING} requests wait for preprocess: try again")
            )
        else:
            self._open[responder] = None
            work = partial(self._preprocess, plain, request, responder, pass_on)
            self._preprocess_threads.submit(work)

    def drain(self, timeout_s: float) -> None:
        """Refuses new requests from here on; requests whose ``preprocess`` does not return in time
        are answered with UNAVAILABLE.
        """
        self._closing = True
        _wait_until(lambda: not self._open, timeout_s)
        for responder in list(self._open):
            if self._claim(responder):
                responder.fail(OverloadedError(_UNLOADING))

    def close(self, timeout_s: float) -> None:
        """Ends the threads; a response whose ``postprocess`` does not return in time becomes an
        error.
        """
        _wait_until(lambda: not self.sending, timeout_s)
        for responder in list(self.sending):
            responder.fail_now(OverloadedError(_UNLOADING))
        self._preprocess_threads.close()
        self.postprocess_threads.close()

    def _preprocess(
        self, plain: PlainRequest, request: HookRequest, responder: Responder, pass_on: PassOn
    ) -> None:
        if responder not in self._open:
            return  # answered while it waited: the model is being unloaded
        try:
            self.file.run("preprocess", request, request_id=responder.request_id)
        except RuntimeModelError as error:
            if self._claim(responder):
                responder.fail(error)
            return
        # Claimed only after the task has the request: a drain waits for that.
        if responder in self._open:
            self._pass_on(plain, request, responder, pass_on)
            self._claim(responder)

    def _pass_on(
        self, plain: PlainRequest, request: HookRequest, responder: Responder, pass_on: PassOn
    ) -> None:
        plain = replace(plain, inputs=dict(request), parameter_values=request.parameters)
        hooked: Responder = responder
        if self.file.defines("postprocess"):
            hooked = HookedResponder(responder, request, self)
        try:
            pass_on(plain, request.outputs, hooked)
        except Exception as error:
            answer_failure(responder, error)

    def _claim(self, responder: Responder) -> bool:
        """True for exactly one thread: the one that may answer a request in ``preprocess``."""
        return self._open.pop(responder, self) is None

    def _num_rows(self, plain: PlainRequest) -> int | None:
        if not self._batched:
            return None
        return next((array.shape[0] for array in plain.inputs.values()), 1)


class HookedResponder:
    """Runs ``postprocess`` on each response, in order, on the hooks' threads, and sends it."""

    def __init__(self, inner: Responder, request: HookRequest, hooking: HookRunner) -> None:
        self.request_id = inner.request_id
        self._inner = inner
        self._request = request
        self._hooking = hooking
        self._has_failed = False
        self._waiting: deque[Work] = deque()  # the first one runs
        self._lock = threading.Lock()

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        self._submit(partial(self._postprocess, outputs, final=final))

    def fail(self, error: Exception) -> None:
        self._submit(partial(self.fail_now, error))

    def is_cancelled(self) -> bool:
        # Once a request has failed, the engine need not generate the rest of it.
        return self._has_failed or self._inner.is_cancelled()

    def fail_now(self, error: Exception) -> None:
        """Sends an error at once, unless one was sent before."""
        with self._lock:
            had_failed, self._has_failed = self._has_failed, True
        if not had_failed:
            self._inner.fail(error)

    def _submit(self, work: Work) -> None:
        with self._lock:
            self._waiting.append(work)
            if len(self._waiting) > 1:
                return
            self._hooking.sending[self] = None
        self._hooking.postprocess_threads.submit(self._run_first)

    def _run_first(self) -> None:
        try:
            self._waiting[0]()
        except Exception as error:
            log.error(labelled(self.request_id, f"a response failed: {place(error)}"))
            self.fail_now(error)
        with self._lock:
            self._waiting.popleft()
            if not self._waiting:
                self._hooking.sending.pop(self, None)
                return
        # At the end of the queue: other requests wait too.
        self._hooking.postprocess_threads.submit(self._run_first)

    def _postprocess(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        if self._has_failed:
            return
        hooking = self._hooking
        response = HookResponse(outputs, hooking.outputs, self._request, is_final=final)
        try:
            hooking.file.run("postprocess", response, request_id=self.request_id)
        except RuntimeModelError as error:
            self.fail_now(error)
            return
        # An output that the caller did not list would be dropped by Triton's stub without the
        # interpreter's lock, which kills it on Python 3.12.
        wanted = {name: response[name] for name in response if name in self._request.outputs}
        if not self._has_failed:
            self._inner.send(wanted, final=final)


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)


class HookThreads:
    """Runs work, which must not raise, in the order of its arrival.

    The threads are daemons, which concurrent.futures' are not: a hook that never returns does not
    keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        for _ in range(NUM_THREADS):
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Work) -> None:
        """Runs ``work`` as soon as a thread is free."""
        self._waiting.put(work)

    def close(self) -> None:
        """Ends every thread when it has done what was submitted; waits for none."""
        for _ in range(NUM_THREADS):
            self._waiting.put(None)

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            work()
            del work  # holds a request's arrays

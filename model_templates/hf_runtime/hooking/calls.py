"""Takes requests through ``preprocess`` and their responses through ``postprocess``.

Every request is answered exactly once whatever a hook does; a bad hook is its request's own error.
Knows neither Triton nor the task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy.typing as npt

from .. import log
from ..errors import OverloadedError, RuntimeModelError, place
from ..hooks import HookRequest, HookResponse
from ..request.declared import Declared
from ..request.plain_request import PlainRequest
from ..request.request_ids import labelled
from ..request.responder import Responder, answer_failure
from .hook_file import HookFile
from .threads import HookThreads, InOrder

Array = npt.NDArray[Any]
Take = Callable[[PlainRequest, Iterable[str], Responder], None]

NUM_THREADS = 8
MAX_WAITING = 1024
_UNLOADING = "the model is being unloaded: try again"


class Hooking:
    """The requests and responses of one model that are in its hooks' hands."""

    def __init__(
        self,
        file: HookFile,
        inputs: Mapping[str, Declared],
        outputs: Mapping[str, Declared],
        *,
        batched: bool,
    ) -> None:
        self.file = file
        self.outputs = outputs
        self.sending: dict[HookedResponder, None] = {}  # those whose postprocess is not done
        self._inputs = inputs
        self._batched = batched
        self._before = HookThreads("preprocess", NUM_THREADS)
        self.after = HookThreads("postprocess", NUM_THREADS)
        self._open: dict[Responder, None] = {}  # changed one key at a time, which is atomic
        self._closing = False

    def receive(
        self, plain: PlainRequest, listed: Iterable[str], responder: Responder, take: Take
    ) -> None:
        """Passes a request on to ``take``, on another thread where there is a ``preprocess``."""
        request = HookRequest(
            plain.inputs,
            self._inputs,
            self._num_rows(plain),
            parameters=plain.given,
            outputs=tuple(listed),
        )
        if not self.file.has("preprocess"):
            self._pass_on(request, responder, take)
        elif self._closing:
            responder.fail(OverloadedError(_UNLOADING))
        elif len(self._open) >= MAX_WAITING:
            responder.fail(
                OverloadedError(f"{MAX_WAITING} requests wait for preprocess: try again")
            )
        else:
            self._open[responder] = None
            self._before.submit(partial(self._preprocess, request, responder, take))

    def drain(self, timeout_s: float) -> None:
        """Takes no more requests; those that ``preprocess`` does not let go in time are answered
        with UNAVAILABLE.
        """
        self._closing = True
        _wait_until(lambda: not self._open, timeout_s)
        for responder in list(self._open):
            if self._claim(responder):
                responder.fail(OverloadedError(_UNLOADING))

    def close(self, timeout_s: float) -> None:
        """Ends the threads; responses that ``postprocess`` still holds then become errors."""
        _wait_until(lambda: not self.sending, timeout_s)
        for responder in list(self.sending):
            responder.give_up(OverloadedError(_UNLOADING))
        self._before.close()
        self.after.close()

    def _preprocess(self, request: HookRequest, responder: Responder, take: Take) -> None:
        if responder not in self._open:
            return  # answered while it waited: the model is being unloaded
        try:
            self.file.run("preprocess", request, request_id=responder.request_id)
        except RuntimeModelError as error:
            if self._claim(responder):
                responder.fail(error)
            return
        # Only now: a drain waits until the task has it.
        if responder in self._open:
            self._pass_on(request, responder, take)
            self._claim(responder)

    def _pass_on(self, request: HookRequest, responder: Responder, take: Take) -> None:
        inputs = {name: request[name] for name in request}
        plain = PlainRequest(inputs, request.parameters)
        hooked: Responder = responder
        if self.file.has("postprocess"):
            hooked = HookedResponder(responder, request, self)
        try:
            take(plain, request.outputs, hooked)
        except Exception as error:
            answer_failure(responder, error)

    def _claim(self, responder: Responder) -> bool:
        """True for the one caller that may answer a request that ``preprocess`` has not let go."""
        return self._open.pop(responder, self) is None

    def _num_rows(self, plain: PlainRequest) -> int | None:
        if not self._batched:
            return None
        return next((array.shape[0] for array in plain.inputs.values()), 1)


class HookedResponder:
    """Passes responses through ``postprocess``, in order, on the hooks' threads."""

    def __init__(self, inner: Responder, request: HookRequest, hooking: Hooking) -> None:
        self.request_id = inner.request_id
        self._inner = inner
        self._request = request
        self._hooking = hooking
        self._in_order = InOrder(hooking.after)
        self._has_failed = False
        self._num_waiting = 0
        self._lock = threading.Lock()

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        self._submit(partial(self._postprocess, outputs, final=final))

    def fail(self, error: Exception) -> None:
        self._submit(partial(self.give_up, error))

    def is_cancelled(self) -> bool:
        # What a failed request still generates is for nobody.
        return self._has_failed or self._inner.is_cancelled()

    def give_up(self, error: Exception) -> None:
        """Answers with an error now, unless one was sent before."""
        with self._lock:
            had_failed, self._has_failed = self._has_failed, True
        if not had_failed:
            self._inner.fail(error)

    def _submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._num_waiting += 1
            self._hooking.sending[self] = None
        self._in_order.submit(partial(self._run, work))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            log.error(labelled(self.request_id, f"a response failed: {place(error)}"))
            self.give_up(error)
        with self._lock:
            self._num_waiting -= 1
            if not self._num_waiting:
                self._hooking.sending.pop(self, None)

    def _postprocess(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        if self._has_failed:
            return
        hooking = self._hooking
        response = HookResponse(outputs, hooking.outputs, self._request, is_final=final)
        try:
            hooking.file.run("postprocess", response, request_id=self.request_id)
        except RuntimeModelError as error:
            self.give_up(error)
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

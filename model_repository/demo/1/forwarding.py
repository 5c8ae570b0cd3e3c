"""Passes requests on to an engine, and follows them until they are answered."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from hf_runtime import engine_link, log
from hf_runtime.engine_link import FrameTooLargeError
from hf_runtime.errors import RequestError, RuntimeModelError, place
from hf_runtime.responder import Responder, TritonResponder

from .engines import Engines
from .waiting import EngineAnswerError, Waiting

_LOOK_EVERY_S = 0.015
# Asking Triton whether a caller has gone is a message and its answer, about 45 microseconds: with a
# thousand requests waiting it is asked of each about four times a second.
_REST_PER_LOOK = 4


class Forwarder:
    """The requests of one front."""

    def __init__(self, engines: Engines, pb_utils: Any) -> None:
        """``pb_utils`` is the module ``triton_python_backend_utils``."""
        self.engines = engines
        self._pb_utils = pb_utils
        self._numbers = itertools.count()
        self._wake = threading.Event()
        self._closing = False
        self._watcher = threading.Thread(target=self._watch, name="cancellations", daemon=True)
        engines.start(self._pass_on_again)
        self._watcher.start()

    def forward(self, request: Any) -> None:
        """Passes a request on, or answers it with what is in the way; never raises."""
        responder = TritonResponder(request, self._pb_utils)
        try:
            self.engines.pass_on(self._waiting(request, responder))
            self._wake.set()
        except RuntimeModelError as error:
            responder.fail(error)
        except Exception as error:
            # Our own fault, but one request's answer all the same.
            log.error(f"a request was not passed on: {place(error)}")
            responder.fail(error)

    def close(self) -> None:
        """Answers what waits with UNAVAILABLE and ends every thread."""
        self._closing = True
        self._wake.set()
        self._watcher.join()
        self.engines.close()

    def _waiting(self, request: Any, responder: Responder) -> Waiting:
        number = next(self._numbers)
        listed = list(request.requested_output_names())
        inputs = {
            tensor.name(): engine_link.pack_tensor(tensor.as_numpy()) for tensor in request.inputs()
        }
        frame = {
            "kind": "request",
            "id": number,
            "inputs": inputs,
            "parameters": request.parameters() or "{}",
            "outputs": listed,
        }
        try:
            data = engine_link.encode(frame)
        except FrameTooLargeError as error:
            raise RequestError(f"the request: got {error}") from None
        return Waiting(number, data, listed, responder)

    def _pass_on_again(self, waiting: Waiting, error: EngineAnswerError) -> None:
        """To another engine, where there is one, after the first gave it back."""
        try:
            self.engines.pass_on(waiting)
            self._wake.set()
        except RuntimeModelError:
            waiting.fail(error)

    def _watch(self) -> None:
        """Cancels the requests of callers that have gone."""
        while not self._closing:
            began = time.monotonic()
            if not self._look_at_all():
                self._wake.wait()
                self._wake.clear()
                continue
            took_s = time.monotonic() - began
            time.sleep(max(_LOOK_EVERY_S, _REST_PER_LOOK * took_s))

    def _look_at_all(self) -> int:
        """How many requests wait."""
        num_waiting = 0
        for client in self.engines.clients():
            for waiting in list(client.waiting.values()):
                num_waiting += 1
                if waiting.is_cancelled():
                    client.cancel(waiting)
        return num_waiting

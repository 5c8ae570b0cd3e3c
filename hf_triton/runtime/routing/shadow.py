"""Sends copies of requests to another model, the shadow; counts and discards its answers.

Nothing here blocks, raises or answers a caller: copies beyond the limits are dropped. Knows nothing
of arms.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .. import log
from ..errors import RequestError, RuntimeModelError, place
from ..link.forwarder import Forwarder
from ..link.link_request import LinkRequest
from ..request.plain_request import PlainRequest
from ..request.request_ids import labelled
from ..request.responder import Array
from .arm_metrics import ArmMetrics, CountedResponder

MAX_OPEN = 256
MAX_OPEN_BYTES = 64 * 2**20


@dataclass(frozen=True)
class _Copy:
    """A copy that is queued or sent, and not answered yet."""

    shadow: str
    forwarder: Forwarder
    request: LinkRequest
    num_bytes: int


class ShadowSender:
    """Sends copies of one instance's requests, on a thread of its own. At most MAX_OPEN copies, of
    at most MAX_OPEN_BYTES together, are open at a time.
    """

    def __init__(self, counts: ArmMetrics) -> None:
        self._counts = counts
        self._num_open = 0
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Copy | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)
        self._thread.start()

    def submit(
        self,
        shadow: str,
        forwarder: Forwarder,
        request: PlainRequest,
        requested_outputs: Iterable[str],
        *,
        may_stream: bool,
    ) -> None:
        """Queues a copy or drops it. Its arrays must not be changed afterwards."""
        parameters = json.dumps(dict(request.parameter_values))
        passed = LinkRequest(
            request.inputs,
            parameters,
            list(requested_outputs),
            request.request_id,
            may_stream=may_stream,
            is_routed=True,
        )
        copy = _Copy(shadow, forwarder, passed, _num_bytes_of(request.inputs) + len(parameters))
        if self._admits(copy):
            self._waiting.put(copy)
        else:
            self._counts.ended(shadow, "dropped")

    def close(self) -> None:
        """Ends the thread; copies that are not sent yet are dropped."""
        self._waiting.put(None)
        self._thread.join()

    def _admits(self, copy: _Copy) -> bool:
        with self._lock:
            num_bytes = self._num_bytes + copy.num_bytes
            if self._num_open >= MAX_OPEN or num_bytes > MAX_OPEN_BYTES:
                return False
            self._num_open += 1
            self._num_bytes = num_bytes
        return True

    def _run(self) -> None:
        while (copy := self._waiting.get()) is not None:
            try:
                self._send(copy)
            except Exception as error:
                text = f"a shadow's copy was not sent: {place(error)}"
                log.error(labelled(copy.request.request_id, text))
                self._ended(copy, "failed")

    def _send(self, copy: _Copy) -> None:
        def end(outcome: str, seconds: float | None) -> None:
            self._ended(copy, outcome, seconds)

        def lose(_error: RuntimeModelError) -> None:
            end("unreachable", None)

        try:
            sent = copy.forwarder.try_forward(
                copy.request,
                CountedResponder(_DiscardingResponder(copy.request.request_id), end),
                lose,
            )
        except RequestError:  # too large for the link
            end("dropped", None)
            return
        if not sent:
            end("unreachable", None)

    def _ended(self, copy: _Copy, outcome: str, seconds: float | None = None) -> None:
        with self._lock:
            self._num_open -= 1
            self._num_bytes -= copy.num_bytes
        self._counts.ended(copy.shadow, outcome, seconds)


class _DiscardingResponder:
    """Discards the shadow's answer: no caller waits for it."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass

    def is_cancelled(self) -> bool:
        return False


def _num_bytes_of(inputs: Mapping[str, Array]) -> int:
    """The inputs' size in bytes, roughly: arrays of texts hold pointers, so texts are added."""
    texts = (array for array in inputs.values() if array.dtype == object)
    held = sum(len(item) for array in texts for item in array.reshape(-1).tolist())
    return held + sum(int(array.nbytes) for array in inputs.values())

"""A thread that turns what an engine generated into answers: decoding, packing, sending.

So none of that stands between two steps of the engine: while the next one is computed, the last
one's tokens are on their way. When sending falls behind, the news of several steps goes out
together. Knows neither engines nor Triton.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable

from hf_runtime import log
from hf_runtime.errors import EngineError, place, reason
from hf_runtime.request_ids import labelled

from .sequence import Recipient, Update


class Delivery:
    """Started when made; ``stop`` returns when everything that was put in has been sent."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[list[Update] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)
        self._thread.start()

    def put(self, updates: list[Update]) -> None:
        """Hands over the news of a step; never blocks."""
        self._queue.put(updates)

    def stop(self) -> None:
        """Sends what is left and ends the thread."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (updates := self._queue.get()) is not None:
            last = False
            while not self._queue.empty():
                more = self._queue.get()
                if more is None:
                    last = True
                    break
                updates += more
            self._deliver(updates)
            if last:
                return

    def _deliver(self, updates: Iterable[Update]) -> None:
        recipients: dict[Recipient, None] = {}
        for update in updates:
            recipient = update.sequence.recipient
            recipients[recipient] = None
            try:
                recipient.take(update)
            except Exception as error:
                _fail(recipient, error)
        for recipient in recipients:
            try:
                recipient.flush()
            except Exception as error:
                _fail(recipient, error)


def _fail(recipient: Recipient, error: Exception) -> None:
    """A tokenizer's failure, or our own, is one request's, not its neighbours'."""
    text = f"an output could not be delivered: {place(error)}"
    log.error(labelled(recipient.request_id, text))
    recipient.fail(EngineError(f"decoding the output failed: {reason(error)}"))

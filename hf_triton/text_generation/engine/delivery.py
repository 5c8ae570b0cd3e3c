"""A thread that turns what an engine generated into answers: decoding, packing, sending.

So none of that stands between two steps of the engine: while the next one is computed, the last
one's tokens are on their way. When sending falls behind, the news of several steps goes out
together. Knows neither engines nor Triton.
"""

from __future__ import annotations

import contextlib
import queue
import threading

from hf_triton.runtime import log
from hf_triton.runtime.errors import EngineError, place, reason
from hf_triton.runtime.request.request_ids import labelled

from ..sequence.sequence import Recipient, Update


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
        ends = False
        while not ends:
            updates: list[Update] = []
            news = self._queue.get()
            with contextlib.suppress(queue.Empty):
                while news is not None:
                    updates += news
                    news = self._queue.get_nowait()
            ends = news is None
            _deliver(updates)


def _deliver(updates: list[Update]) -> None:
    """Hands each recipient its news, and has it send what it took."""
    for update in updates:
        recipient = update.sequence.recipient
        try:
            recipient.take(update)
        except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
            _fail(recipient, error)
    for recipient in dict.fromkeys(update.sequence.recipient for update in updates):
        try:
            recipient.flush()
        except BaseException as error:
            _fail(recipient, error)


def _fail(recipient: Recipient, error: BaseException) -> None:
    """A tokenizer's failure, or our own, is one request's, not its neighbours'."""
    text = f"an output could not be delivered: {place(error)}"
    log.error(labelled(recipient.request_id, text))
    recipient.fail(EngineError(f"decoding the output failed: {reason(error)}"))

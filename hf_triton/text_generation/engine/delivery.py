"""A thread that decodes, packs and sends what an engine generated, while the engine computes its
next step. When sending falls behind, the news of several steps goes out together.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from functools import partial

from hf_triton.runtime import log
from hf_triton.runtime.errors import EngineError, place, reason

from ..sequence.sequence import Recipient, Update


class Delivery:
    """Started when made; ``stop`` returns when everything that was put in has been sent."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[list[Update] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)
        self._thread.start()

    def put(self, updates: list[Update]) -> None:
        self._queue.put(updates)

    def stop(self) -> None:
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
            for update in updates:
                recipient = update.sequence.recipient
                _deliver(recipient, partial(recipient.take, update))
            for recipient in dict.fromkeys(update.sequence.recipient for update in updates):
                _deliver(recipient, recipient.flush)


def _deliver(recipient: Recipient, action: Callable[[], None]) -> None:
    """A tokenizer's failure, or our own, is one request's, not its neighbours'."""
    try:
        action()
    except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
        text = f"an output could not be delivered: {place(error)}"
        log.error(text, recipient.request_id)
        recipient.fail(EngineError(f"decoding the output failed: {reason(error)}"))

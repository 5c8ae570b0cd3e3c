"""A thread that turns what an engine generated into answers: decoding, packing, sending.

So none of that stands between two steps of the engine: while the next one is computed, the last
one's tokens are on their way. When sending falls behind, or takes more of the time than it may, the
news of several steps goes out together; a sequence's first and last never wait. Knows neither
engines nor Triton.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable

from hf_triton.runtime import log
from hf_triton.runtime.errors import EngineError, place, reason
from hf_triton.runtime.request.request_ids import labelled

from ..sequence.sequence import Recipient, Update

_LONGEST_REST_S = 0.2


class Delivery:
    """Started when made; ``stop`` returns when everything that was put in has been sent."""

    def __init__(self, share: float = 1.0) -> None:
        """``share`` of the time, above 0 and at most 1, is what sending streams' news may take."""
        self._share = share
        self._queue: queue.SimpleQueue[list[Update] | None] = queue.SimpleQueue()
        self._held: dict[Recipient, None] = {}  # took news that is not sent yet
        self._rest_until_s = 0.0
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
            updates, ends = self._next()
            self._send(self._take(updates))
            if self._held and (ends or time.monotonic() >= self._rest_until_s):
                self._send_all()

    def _next(self) -> tuple[list[Update], bool]:
        """What was put in since, and whether that is all; waits for it, with news held back no
        longer than the rest lasts.
        """
        rest_s = max(0.0, self._rest_until_s - time.monotonic()) if self._held else None
        updates: list[Update] = []
        try:
            news = self._queue.get(timeout=rest_s)
            while news is not None:
                updates += news
                news = self._queue.get_nowait()
        except queue.Empty:
            return updates, False
        return updates, True

    def _take(self, updates: Iterable[Update]) -> list[Recipient]:
        """Hands each recipient its news; returns those whose news does not wait."""
        urgent: dict[Recipient, None] = {}
        for update in updates:
            recipient = update.sequence.recipient
            self._held[recipient] = None
            if update.is_first or update.finish_reason is not None:
                urgent[recipient] = None
            try:
                recipient.take(update)
            except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
                _fail(recipient, error)
        return list(urgent)

    def _send_all(self) -> None:
        """Sends what is held; then rests for as long as keeps to the share."""
        began_s = time.monotonic()
        self._send(list(self._held))
        ended_s = time.monotonic()
        rest_s = (ended_s - began_s) * (1.0 / self._share - 1.0)
        self._rest_until_s = ended_s + min(rest_s, _LONGEST_REST_S)

    def _send(self, recipients: Iterable[Recipient]) -> None:
        for recipient in recipients:
            self._held.pop(recipient, None)
            try:
                recipient.flush()
            except BaseException as error:
                _fail(recipient, error)


def _fail(recipient: Recipient, error: BaseException) -> None:
    """A tokenizer's failure, or our own, is one request's, not its neighbours'."""
    text = f"an output could not be delivered: {place(error)}"
    log.error(labelled(recipient.request_id, text))
    recipient.fail(EngineError(f"decoding the output failed: {reason(error)}"))

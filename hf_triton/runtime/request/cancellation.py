"""Finds requests whose callers have disconnected, and decides how often to ask Triton."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .. import log
from ..errors import place

# is_cancelled takes 45 microseconds here on 24.10, and several times that in the server: asking for
# a tenth of the time cost 22 % of a core at 32 callers. So asking takes at most one part in 50.
_PAUSES_FOR_A_ROUND = 50
_SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 1.0
_LONGEST_PAUSE_FOR_ONE_S = 0.01  # however slowly the server answers
_ASKED_AFTER_S = 0.05


class CancellationWatch:
    """A thread that asks whether callers have gone while requests are open."""

    def __init__(
        self, ask_all: Callable[[], int], last_step_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """``ask_all`` cancels requests whose callers have gone; returns how many it asked about."""
        self._ask_all, self._last_step_s = ask_all, last_step_s
        self._came = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="cancellations", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._came.set()

    def close(self) -> None:
        self._closing = True
        self._came.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            began_s = time.monotonic()
            try:
                num_asked = self._ask_all()
            except Exception as error:  # the next round's requests may be asked about
                log.warn(f"could not ask whether callers have left: {place(error)}")
                time.sleep(LONGEST_PAUSE_S)
                continue
            if not num_asked:
                self._came.wait()
                self._came.clear()
                continue
            round_s = time.monotonic() - began_s
            time.sleep(pause_s(num_asked, round_s, self._last_step_s()))


def pause_s(num_asked: int, round_s: float, step_s: float = 0.0) -> float:
    """Seconds to wait between two rounds, the last of which asked about ``num_asked`` requests in
    ``round_s``.

    As short as costs next to nothing, but not shorter than a step of the engine, ``step_s``: about
    50 milliseconds at 32 callers, a second at 1,000.
    """
    longest_s = min(_LONGEST_PAUSE_FOR_ONE_S * num_asked, LONGEST_PAUSE_S)
    cheap_s = max(_PAUSES_FOR_A_ROUND * round_s, step_s)
    return max(_SHORTEST_PAUSE_S, min(cheap_s, longest_s))


def has_left(is_cancelled: Callable[[], bool], waited_s: float, request_id: str) -> bool:
    """Whether the caller has disconnected; False if the server can't say."""
    # To ask is a message to the server and back: not for what is answered at once.
    if waited_s < _ASKED_AFTER_S:
        return False
    try:
        return is_cancelled()
    except Exception as error:
        text = f"could not ask whether a caller has left: {place(error)}"
        log.warn(text, request_id)
        return False

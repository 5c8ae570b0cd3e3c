"""Finds requests whose callers have disconnected, and decides how often to ask Triton."""

from __future__ import annotations

import time
from collections.abc import Callable

from .. import log
from ..errors import place
from ..repeating import Repeating

# is_cancelled takes 45 microseconds here on 24.10, and several times that in the server: asking for
# a tenth of the time cost 22 % of a core at 32 callers. So asking takes at most one part in 50.
_PAUSES_FOR_A_ROUND = 50
_SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 1.0
_LONGEST_PAUSE_FOR_ONE_S = 0.01  # however slowly the server answers
_ASKED_AFTER_S = 0.05


class CancellationWatch(Repeating):
    """Asks whether callers have gone while requests are open; ``wake`` says that one has come."""

    def __init__(
        self, ask_all: Callable[[], int], last_step_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """``ask_all`` cancels requests whose callers have gone; returns how many it asked about."""
        super().__init__("cancellations", self._ask)
        self._ask_all, self._last_step_s = ask_all, last_step_s
        self.start()

    def _ask(self) -> float | None:
        began_s = time.monotonic()
        num_asked = self._ask_all()
        if not num_asked:
            return None
        # Not to be woken by each request that comes.
        time.sleep(pause_s(num_asked, time.monotonic() - began_s, self._last_step_s()))
        return 0.0


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

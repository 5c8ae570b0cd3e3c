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
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 1.0
_LONGEST_PAUSE_FOR_ONE_S = 0.01  # however slowly the server answers
_ASKED_AFTER_S = 0.05


class CancellationWatch(Repeating):
    """Asks whether callers have gone while requests are open; ``wake`` says that one has come."""

    def __init__(self, ask_all: Callable[[], int]) -> None:
        """``ask_all`` cancels requests whose callers have gone; returns how many it asked about."""
        super().__init__("cancellations", self._ask)
        self._ask_all = ask_all
        self.start()

    def _ask(self) -> float | None:
        began_s = time.monotonic()
        if not (num_asked := self._ask_all()):
            return None
        # Not to be woken by each request that comes.
        time.sleep(pause_s(num_asked, time.monotonic() - began_s))
        return 0.0


def pause_s(num_asked: int, round_s: float) -> float:
    """Seconds to wait after a round that asked about ``num_asked`` requests in ``round_s``: as
    short as costs next to nothing, about 50 milliseconds at 32 callers, a second at 1,000.
    """
    longest_s = min(_LONGEST_PAUSE_FOR_ONE_S * num_asked, _LONGEST_PAUSE_S)
    return max(_SHORTEST_PAUSE_S, min(_PAUSES_FOR_A_ROUND * round_s, longest_s))


def has_left(is_cancelled: Callable[[], bool], waited_s: float, request_id: str) -> bool:
    """True if the caller has disconnected; False if the server can't say."""
    # To ask is a message to the server and back: not for what is answered at once.
    if waited_s < _ASKED_AFTER_S:
        return False
    try:
        return is_cancelled()
    except Exception as error:
        text = f"could not ask whether a caller has left: {place(error)}"
        log.warn(text, request_id)
        return False

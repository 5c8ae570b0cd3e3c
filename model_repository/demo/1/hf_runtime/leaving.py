"""How often Triton is asked whose callers have left."""

from __future__ import annotations

# To ask takes 45 microseconds here on 24.10 and several times that in all, for it goes to the
# server and back: rounds that took a tenth of the time cost 22 % of a core at 32 callers.
_PAUSES_FOR_A_ROUND = 50
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 1.0
_LONGEST_PAUSE_FOR_ONE_S = 0.01  # however slow the answers are


def pause_s(num_asked: int, round_s: float, step_s: float = 0.0) -> float:
    """Seconds to wait after ``num_asked`` requests were asked of in ``round_s``.

    As often as costs next to nothing, but not twice in a step of the engine, which takes
    ``step_s``: at 32 callers about every 50 milliseconds, at 1,000 every second.
    """
    longest_s = min(_LONGEST_PAUSE_FOR_ONE_S * num_asked, _LONGEST_PAUSE_S)
    cheap_s = max(_PAUSES_FOR_A_ROUND * round_s, step_s)
    return max(_SHORTEST_PAUSE_S, min(cheap_s, longest_s))

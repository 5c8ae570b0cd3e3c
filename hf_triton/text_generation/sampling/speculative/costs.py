"""How many drafted tokens pay: by what they cost, as measured, and how often they are accepted.

Knows steps as numbers and seconds; knows no model and no text.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

from hf_triton.text_generation.engine.step_times import LowMean

_MOST = 2.0  # times what a step is to take
_FIRST_COST = 0.3  # until something is measured
_LEAST = 0.02
_STEPS = 64  # with drafts, until one without is measured again
_FIRST_PAUSE, _LONGEST_PAUSE = 128, 2048  # steps, from one trial to the next where drafts don't pay


@dataclass
class _Measured:
    """What was measured of drafts beside about as many sequences."""

    cost: LowMean = field(default_factory=lambda: LowMean(_FIRST_COST, 1))
    pause: int = _FIRST_PAUSE
    num_steps: int = 0  # of the pause


class Costs:
    """What a drafted token costs, in units of what a generated one does without drafts."""

    def __init__(self) -> None:
        self._plain: dict[int, LowMean] = {}  # seconds, by the number of sequences
        self._num_drafted_steps: dict[int, int] = defaultdict(int)  # since
        self._measured: dict[int, _Measured] = defaultdict(_Measured)

    def note(self, num_seqs: int, num_drafted: int, seconds: float) -> None:
        """A step of decodes alone took so long, from the end of the one before to its own."""
        if not num_drafted:
            plain = self._plain.setdefault(num_seqs, LowMean(seconds))
            plain.add(min(seconds, _MOST * plain.value))
            self._num_drafted_steps[num_seqs] = 0
        elif num_seqs in self._plain:
            self._num_drafted_steps[num_seqs] += 1
            tokens = num_drafted / num_seqs
            cost = self._of(num_seqs).cost
            times = min(seconds / self._plain[num_seqs].value, _MOST * (1 + cost.value * tokens))
            cost.add((times - 1) / tokens, weight=min(1.0, tokens))

    def has_plain(self, num_seqs: int) -> bool:
        """Whether a step without drafts of so many sequences was measured lately."""
        return num_seqs in self._plain and self._num_drafted_steps[num_seqs] < _STEPS

    def best_length(self, num_seqs: int, rate: float, most: int) -> int:
        """How many tokens to draft for a sequence where each is accepted with probability
        ``rate``.
        """
        cost = max(_LEAST, self._of(num_seqs).cost.value)
        return _best_length(round(cost, 2), round(rate, 2), most)

    def is_trial(self, num_seqs: int) -> bool:
        """Whether a step in which drafts would not pay tries some all the same: few do, and fewer
        the longer nothing has changed.
        """
        measured = self._of(num_seqs)
        measured.num_steps += 1
        if measured.num_steps < measured.pause:
            return False
        measured.num_steps, measured.pause = 0, min(2 * measured.pause, _LONGEST_PAUSE)
        return True

    def pays(self, num_seqs: int) -> None:
        """Drafts pay again: should they not, that is tried again soon."""
        measured = self._of(num_seqs)
        measured.pause, measured.num_steps = _FIRST_PAUSE, 0

    def _of(self, num_seqs: int) -> _Measured:
        return self._measured[num_seqs.bit_length()]


@lru_cache(maxsize=4096)
def _best_length(cost: float, rate: float, most: int) -> int:
    """The length with the most tokens for their time: the drafted one number i is accepted with
    probability rate^i, and one token comes without drafts (https://arxiv.org/abs/2211.17192,
    section 3.3).
    """
    length, chance, expected, time = 0, rate, 1.0, 1.0
    while length < most and chance * time > cost * expected:
        length, expected, time = length + 1, expected + chance, time + cost
        chance *= rate
    return length

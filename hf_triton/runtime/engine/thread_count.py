"""Chooses the number of threads for an engine's steps: the fastest one at the time.

Where other processes take cores, or a quota ends, a thread team waits at each loop for its slowest
member, and fewer threads would be faster. The number is tried on the steps themselves: blocks of
steps alternate between the present number and the next one. Trials are rare and take some 3 % of
the time; a sudden change of step times begins one sooner, which delays the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import torch

from hf_triton.runtime import log
from hf_triton.runtime.metrics.publishing import Family, one_number

_BLOCK_STEPS, _BLOCK_S = 2, 0.1  # at least, of a trial; a quota's period is 0.1 s
_MOST_ROUNDS = 8  # of a trial: two blocks each
_MIN_GAIN = 0.05  # of the time: a smaller one may be noise
_LEAST_DOUBT = 0.5  # of the time, about a mean of one step
_COST, _LONGEST_S = 45, 30.0  # times what a trial has cost pass until the next one, at most
_LONGER = 8  # times that, while all threads stay clearly the fastest
_LEAST_COST = 0.05  # of a trial's time: what it is taken to have cost at least
_FIRST_S = 0.5  # of steps, before the first trial
_USUAL = 0.25  # of a step's time: so much more or less is no change
_CHANGE_S = 0.3  # of time lost or won beyond that: a change, which calls for a trial
_CHANGE_COST = 12  # times what a trial has cost pass at least until such a one
_SLOWLY, _FOREVER = 1 / 64, 1 / 1024  # least weights of a step in running means
_MOST = 8.0  # times the mean: what a step counts at most
_LOG_EVERY_S = 60.0
_HELP = "CPU threads that the engine computes with at this moment"


class StepThreads:
    """Sets torch's threads to ``most``, or fewer while that is faster. ``count`` are those of the
    next step; ``settled`` those of the last trial, which a trial's own steps leave as they are.
    """

    def __init__(self, most: int) -> None:
        self.most = self.count = self.settled = most
        steps = {2**power + half for power in range(12) for half in (0, 2**power // 2)}
        self._counts = sorted({most, *(count for count in steps if count < most)})  # 1 2 3 4 6 8 12
        self._num_tokens = 0  # of the step under way
        # Mean seconds, and number, of steps by size; sizes within a fifth are one.
        self._usual: dict[int, list[float]] = {}
        self._trial: _Trial | None = None
        self._is_going_up = False
        self._owed_s = 0.0  # that have yet to pass for what all trials have cost
        self._repeats = 0
        self._logged_s = -_LOG_EVERY_S
        self._more_s = self._less_s = 0.0  # than its level said, lately
        self._hold(_FIRST_S, _FIRST_S, 1.0)

    def start(self) -> None:
        torch.set_num_threads(self.count)

    def computes(self, num_tokens: int) -> None:
        """Adds to the tokens that this step computes on a CPU; steps without any are ignored."""
        self._num_tokens += num_tokens

    def step_took(self, seconds: float) -> None:
        num_tokens, self._num_tokens = self._num_tokens, 0
        count, settled = self.count, self.settled
        if num_tokens:
            self.note(num_tokens, seconds)
        if self.count != count:
            torch.set_num_threads(self.count)
        if self.settled != settled and time.monotonic() - self._logged_s > _LOG_EVERY_S:
            self._logged_s = time.monotonic()
            log.info(
                f"computing with {self.settled} of {self.most} CPU threads, which is faster at the "
                f"moment than with {settled} (said at most every {_LOG_EVERY_S:g} s)"
            )

    def families(self) -> Iterator[Family]:
        yield one_number("hf_triton_cpu_threads", _HELP, self.settled)

    def note(self, num_tokens: int, seconds: float) -> None:
        """Records how long a step of ``num_tokens`` took with ``count`` threads."""
        if self.most == 1 or seconds <= 0:
            return
        size = round(4 * math.log2(num_tokens + 4))
        usual = self._usual.setdefault(size, [seconds / self._level, 0])
        times = seconds / usual[0]
        if self._trial is None:
            self._hold_on(usual, times, seconds)
        else:
            self._try(self._trial, times, seconds)

    def _hold_on(self, usual: list[float], times: float, seconds: float) -> None:
        """A step, ``times`` as long as usual, before the next trial."""
        usual[1] += 1
        # It would have taken so long, had all been as usual.
        taken_s = min(seconds / self._level, _MOST * usual[0])
        usual[0] += max(1 / usual[1], _FOREVER) * (taken_s - usual[0])
        self._held_s += seconds
        self._owed_s = max(0.0, self._owed_s - seconds)
        self._level += _SLOWLY * (times - self._level)
        if self._held_s > self._hold_s or self._has_changed(seconds, seconds * self._level / times):
            self._begin_trial()

    def _has_changed(self, seconds: float, expected_s: float) -> bool:
        """Whether steps take more or less than they did (https://en.wikipedia.org/wiki/CUSUM)."""
        more, less = seconds - expected_s * (1 + _USUAL), expected_s * (1 - _USUAL) - seconds
        self._more_s, self._less_s = max(0.0, self._more_s + more), max(0.0, self._less_s + less)
        if max(self._more_s, self._less_s) < _CHANGE_S:
            return False
        self._repeats = 0
        return self._owed_s <= self._cost_s * (_COST - _CHANGE_COST)

    def _begin_trial(self) -> None:
        """Tries the next number of threads in the direction of the last trial, or the other one."""
        index = self._counts.index(self.settled)
        if index in (0, len(self._counts) - 1):
            self._is_going_up = index == 0
        self._trial = _Trial(self.settled, self._counts[index + (1 if self._is_going_up else -1)])
        self.count = self._trial.count

    def _try(self, trial: _Trial, times: float, seconds: float) -> None:
        trial.note(times, seconds)
        fastest = trial.fastest()
        if fastest is None:
            self.count = trial.count
            return
        self._trial = None
        stays = fastest == self.settled
        self._is_going_up ^= stays
        self._repeats = self._repeats + 1 if stays and trial.is_clear else 0
        self.settled = self.count = fastest
        due_s = trial.cost_s * _COST
        self._owed_s = min(self._owed_s, due_s) + due_s
        hold_s = min(due_s, _LONGEST_S)
        if fastest == self.most:
            hold_s *= min(2**self._repeats, _LONGER)
        elif fastest > 1 and not stays:
            hold_s = 0.0  # the best may be further on
        self._hold(hold_s, trial.cost_s, float(np.mean(trial.times[fastest])))

    def _hold(self, seconds: float, cost_s: float, level: float) -> None:
        self._hold_s, self._cost_s, self._held_s = seconds, cost_s, 0.0
        self._level = level  # of a step's time, in what is usual for its size
        self._more_s = self._less_s = 0.0


class _Trial:
    """Blocks of steps with the ``other`` number of threads and with the ``present`` in turns."""

    def __init__(self, present: int, other: int) -> None:
        self.present, self.other, self.count = present, other, other
        self.times: dict[int, list[float]] = {present: [], other: []}
        self._seconds = {present: 0.0, other: 0.0}
        self._num_steps, self._block_s, self._num_rounds = 0, 0.0, 0

    def note(self, times: float, seconds: float) -> None:
        """Records that a step with ``count`` threads took ``times`` as long as usual. A block's
        first step is not compared: it also wakes threads, or waits for what the last block used up.
        """
        if self._num_steps:
            self.times[self.count].append(times)
        self._num_steps += 1
        self._block_s += seconds
        self._seconds[self.count] += seconds
        if self._num_steps > _BLOCK_STEPS and self._block_s > _BLOCK_S:
            self._num_rounds += self.count == self.present
            self.count = self.other if self.count == self.present else self.present
            self._num_steps, self._block_s = 0, 0.0

    def fastest(self) -> int | None:
        """The number of threads to go on with; None while the trial goes on."""
        if self._num_steps or self.count == self.present:
            return None
        if not self.is_clear and self._num_rounds < _MOST_ROUNDS:
            return None
        return self.other if self._gain > _MIN_GAIN else self.present

    @property
    def is_clear(self) -> bool:
        """Whether the numbers differ by more than they may by chance."""
        variances = [np.var(times) / len(times) for times in self.times.values()]
        doubt = 2 * math.sqrt(sum(variances)) / float(np.mean(self.times[self.present]))
        doubt = max(doubt, _LEAST_DOUBT / min(map(len, self.times.values())))
        return abs(self._gain) > _MIN_GAIN + doubt

    @property
    def _gain(self) -> float:
        """The share of a step's time that the other number saves."""
        return 1 - float(np.mean(self.times[self.other]) / np.mean(self.times[self.present]))

    @property
    def cost_s(self) -> float:
        """Seconds that the slower number of threads has taken longer than the faster."""
        slower = self.other if self._gain < 0 else self.present
        share = abs(self._gain) / max(1.0, 1 - self._gain)
        return max(self._seconds[slower] * share, _LEAST_COST * sum(self._seconds.values()))

"""Chooses the number of threads for an engine's steps: the fastest one at the time.

Where other processes take cores, or a quota ends, a thread team waits at each loop for its slowest
member, and fewer threads would be faster. The number is tried on the steps themselves: blocks of
steps alternate between the present number and the next one, for a fortieth of the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator

import numpy as np
import torch

from hf_triton.runtime import log
from hf_triton.runtime.metrics.publishing import Family, one_number

_BLOCK_STEPS, _BLOCK_S = 2, 0.1  # at least, of a trial; a quota's period is 0.1 s
_LEAST_BLOCKS, _MOST_BLOCKS = 4, 32  # of a trial, in turns
_MIN_GAIN = 0.05  # of the time: a smaller one may be noise
_LEAST_DOUBT = 0.5  # of the time, about a mean of one step
_FIRST_S, _LONGEST_S = 0.5, 40.0  # of steps, before the first trial and between two
_BETWEEN = 40  # times what a trial took pass until the next one
_MEMORY = 64  # steps, of running means
_LOG_EVERY_S = 60.0
Step = tuple[list[float], float]  # the usual seconds of its size, and its own
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
        self._choice = self._choose()
        next(self._choice)
        self._logged_s = -_LOG_EVERY_S

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
        if self.most > 1 and seconds > 0:
            usual = self._usual.setdefault(round(4 * math.log2(num_tokens + 4)), [seconds, 0])
            self.count = self._choice.send((usual, seconds))

    def _choose(self) -> Generator[int, Step, None]:
        """Yields the number of threads of each step; is sent how long it took."""
        left_s, is_going_up = _FIRST_S, False
        while True:
            while left_s > 0:
                usual, seconds = yield self.settled
                usual[1] = min(usual[1] + 1, _MEMORY)
                usual[0] += (seconds - usual[0]) / usual[1]
                left_s -= seconds
            # The next number in the direction of the last trial, or in the other one.
            index = self._counts.index(self.settled)
            if index in (0, len(self._counts) - 1):
                is_going_up = index == 0
            other = self._counts[index + (1 if is_going_up else -1)]
            is_faster, trial_s = yield from self._try(other)
            # After a change the best may be further on.
            left_s = _FIRST_S if is_faster else min(_BETWEEN * trial_s, _LONGEST_S)
            is_going_up ^= not is_faster
            self.settled = other if is_faster else self.settled

    def _try(self, other: int) -> Generator[int, Step, tuple[bool, float]]:
        """Returns whether steps are faster with the other number, and the seconds of the trial. A
        block's first step is not compared: it also wakes threads, or waits for what the last block
        used up.
        """
        times: dict[int, list[float]] = {self.settled: [], other: []}  # parts of the usual time
        trial_s = 0.0
        for number in range(1, _MOST_BLOCKS + 1):
            count = other if number % 2 else self.settled
            num_steps, block_s = 0, 0.0
            while num_steps <= _BLOCK_STEPS or block_s <= _BLOCK_S:
                usual, seconds = yield count
                times[count] += [seconds / usual[0]] if num_steps else []
                num_steps, block_s = num_steps + 1, block_s + seconds
            trial_s += block_s
            if number >= _LEAST_BLOCKS and count == self.settled:
                gain, doubt = _gain(times[self.settled], times[other])
                if abs(gain) > _MIN_GAIN + doubt:
                    return gain > 0, trial_s
        return False, trial_s


def _gain(*both: list[float]) -> tuple[float, float]:
    """The share of a step's time that the second number saves, and how far it may be off."""
    times = [np.array(one) for one in both]
    present, tried = (float(one.mean()) for one in times)
    doubt = 2 * math.sqrt(sum(one.var() / len(one) for one in times)) / present
    return 1 - tried / present, max(doubt, _LEAST_DOUBT / min(map(len, times)))

"""A total that hides the amount a single request added."""

from __future__ import annotations

import random

_draw = random.SystemRandom().random


class RoundedTotal:
    """Adds whole multiples of ``step``: each amount is rounded up or down at random, so that the
    total is right on average, and off by about the square root of ``step`` times its true value.

    A fixed rounding would not do: a client who knows how far the total is from its next step sees
    by one request more whether that added a token more.
    """

    def __init__(self, step: int) -> None:
        self.value = 0
        self._step = step

    def add(self, amount: int) -> None:
        self.value += self._step * int(amount / self._step + _draw())

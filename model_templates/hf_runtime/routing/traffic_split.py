"""Which of a few shares a request falls into: dealt out exactly, or always the same for one value.

Knows nothing of requests or models.
"""

from __future__ import annotations

import hashlib
import math
import random
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate


class Split:
    """Deals numbers of shares. The smallest block of requests that the shares divide without a
    rest (10 of 90 % and 10 %, 200 of 99.5 % and 0.5 %) is dealt exactly, and so is the next; within
    a block the order is random, so that clients that alternate don't always meet the same share.
    """

    def __init__(self, shares: Sequence[Fraction]) -> None:
        """``shares`` are above 0 or 0, and at least one is above."""
        total = sum(shares, Fraction(0))
        parts = [share / total for share in shares]
        num_in_block = math.lcm(*(part.denominator for part in parts))
        self._block = [int(part * num_in_block) for part in parts]
        self._left = list(self._block)
        self._lock = threading.Lock()

    def next(self) -> int:
        """The number of the share that the next request falls into."""
        with self._lock:
            place = random.randrange(sum(self._left))
            number = bisect_right(list(accumulate(self._left)), place)
            self._left[number] -= 1
            if not any(self._left):
                self._left = list(self._block)
        return number


def sticky_share(salt: str, value: str, shares: Iterable[tuple[str, Fraction]]) -> str:
    """The name of the share that ``value`` falls into; ``shares`` are names and sizes, not all 0.

    A share that grows only takes values from others, and one that shrinks only gives some away:
    each share draws a waiting time from the hash of its name and the value, exponential with its
    size as the rate, and the shortest wins (weighted rendezvous hashing, Schindelhauer and
    Schomaker 2005). Cut points on a line would move values between shares that did not change.
    """
    times = ((_exponential(salt, name, value) / size, name) for name, size in shares if size)
    return min(times)[1]


def _exponential(*parts: str) -> float:
    """A number of the exponential distribution, the same for the same texts everywhere."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    bits = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 11
    return -math.log((bits + 0.5) / 2**53)

"""Chooses one of several shares for a request: in exact proportion, or always the same for one
sticky value.

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


class TrafficSplit:
    """Chooses shares in exact proportion: of each block of requests, the smallest that the shares
    divide evenly (10 for 90 % and 10 %, 200 for 99.5 % and 0.5 %), each share gets exactly its
    part. Within a block the order is random, so that clients that alternate don't always get the
    same share.
    """

    def __init__(self, shares: Sequence[Fraction]) -> None:
        """``shares`` are 0 or more, and at least one is above 0."""
        total = sum(shares, Fraction(0))
        parts = [share / total for share in shares]
        num_in_block = math.lcm(*(part.denominator for part in parts))
        self._block = [int(part * num_in_block) for part in parts]
        self._left = list(self._block)
        self._lock = threading.Lock()

    def next(self) -> int:
        """The index of the next request's share."""
        with self._lock:
            place = random.randrange(sum(self._left))
            number = bisect_right(list(accumulate(self._left)), place)
            self._left[number] -= 1
            if not any(self._left):
                self._left = list(self._block)
        return number


def sticky_share(salt: str, value: str, shares: Iterable[tuple[str, Fraction]]) -> str:
    """The name of the share of ``value``, always the same one; ``shares`` are names and sizes, not
    all 0.

    Weighted rendezvous hashing (Schindelhauer and Schomaker 2005): each share draws an exponential
    time from the hash of its name and the value, with its size as the rate, and the shortest wins.
    So a share that grows only takes values from others, and one that shrinks only gives values
    away; cut points on a line would also move values between shares that did not change.
    """
    times = ((_exponential(salt, name, value) / size, name) for name, size in shares if size)
    return min(times)[1]


def _exponential(*parts: str) -> float:
    """An exponentially distributed number, the same for the same texts on every machine."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    bits = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 11
    return -math.log((bits + 0.5) / 2**53)

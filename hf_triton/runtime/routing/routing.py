"""``routing.json``, in the model's folder: the arms of a model and each one's share of the
requests. An arm is a Triton model that gets a share of the requests.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

ROUTING_FILE = "routing.json"
REQUEST_ID = "request_id"


@dataclass(frozen=True)
class Arm:
    """``engine`` is the Triton model that answers, ``weight`` its share in percent."""

    name: str
    engine: str
    weight: Fraction


class Routing:
    """Never changed, only replaced. ``sticky`` is REQUEST_ID, an input or a parameter."""

    def __init__(self, arms: Sequence[Arm], sticky: str | None) -> None:
        """Raises ValueError where the weights are no percentages of a whole."""
        weights = [arm.weight for arm in arms]
        total = sum(weights, Fraction(0))
        if total != 100 or min(weights) < 0:
            raise ValueError(f"weights add up to {float(total):g}, not 100, or one is negative")
        self.arms, self.sticky = tuple(arms), sticky
        self._split = TrafficSplit(weights)

    def choose(self, salt: str, sticky_value: str | None) -> Arm:
        """The arm for the next request; always the same one for a sticky value. ``salt`` goes into
        its hash, so that two models don't put the same users into the same arm.
        """
        if sticky_value is None:
            return self.arms[self._split.next()]
        name = sticky_share(salt, sticky_value, ((arm.name, arm.weight) for arm in self.arms))
        return next(arm for arm in self.arms if arm.name == name)

    def arm_of(self, engine: str) -> Arm | None:
        return next((arm for arm in self.arms if arm.engine == engine), None)

    def weight_of(self, name: str) -> Fraction:
        """An arm's share in percent; 0 if the routing has it no more."""
        return next((arm.weight for arm in self.arms if arm.name == name), Fraction(0))

    def __str__(self) -> str:
        shares = [f"{float(arm.weight):g} % {arm.name}" for arm in self.arms]
        sticky = f", sticky by {self.sticky}" if self.sticky else ""
        return f"requests go {', '.join(shares)}{sticky}"


def parse(content: bytes) -> Routing:
    """The file's content, each number exactly as written: 0.1 is a tenth. Raises ValueError."""
    try:
        values = json.loads(content, parse_int=Fraction, parse_float=Fraction)
        return Routing([Arm(**arm) for arm in values["arms"]], values["sticky"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not what the generator writes: {error}") from error


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

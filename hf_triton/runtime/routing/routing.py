"""``routing.json``, in the model's folder: the arms of a model and each one's share of the
requests. An arm is a Triton model that gets a share of the requests.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

ROUTING_FILE = "routing.json"
REQUEST_ID = "request_id"


@dataclass(frozen=True)
class Arm:
    """``engine`` is the Triton model that answers, ``weight`` its share in percent."""

    name: str
    engine: str
    weight: Fraction


class Routing:
    """Never changed, only replaced. ``sticky`` is REQUEST_ID, an input or a parameter.

    Of each block of requests, the smallest that the weights divide evenly (10 for 90 % and 10 %,
    200 for 99.5 % and 0.5 %), each arm gets exactly its part. Within a block the order is random,
    so that clients that alternate don't always get the same arm.
    """

    def __init__(self, arms: Sequence[Arm], sticky: str | None) -> None:
        """Raises ValueError where the weights are no percentages of a whole."""
        shares = [arm.weight / 100 for arm in arms]
        total = sum(shares, Fraction(0))
        if total != 1 or min(shares) < 0:
            got = f"weights add up to {float(total * 100):g}, not 100, or one is negative"
            raise ValueError(got)
        self.arms, self.sticky = tuple(arms), sticky
        num_in_block = math.lcm(*(share.denominator for share in shares))
        self._block = [int(share * num_in_block) for share in shares]
        self._left_in_block = [*self._block]
        self._lock = threading.Lock()

    def choose(self, salt: str, sticky_value: str | None) -> Arm:
        """The arm for the next request; always the same one for a sticky value. ``salt`` goes into
        its hash, so that two models don't put the same users into the same arm.

        Weighted rendezvous hashing (Schindelhauer and Schomaker 2005): each arm draws an
        exponential time from the hash of its name and the value, with its weight as the rate, and
        the shortest wins. So an arm that grows only takes values from others, and one that shrinks
        only gives values away; cut points on a line would also move values between arms that did
        not change.
        """
        if sticky_value is not None:
            times = {
                arm: _exponential(salt, arm.name, sticky_value) / arm.weight
                for arm in self.arms
                if arm.weight
            }
            return min(times, key=times.__getitem__)
        with self._lock:
            (number,) = random.choices(range(len(self._left_in_block)), self._left_in_block)
            self._left_in_block[number] -= 1
            if not any(self._left_in_block):
                self._left_in_block = [*self._block]
        return self.arms[number]

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
        raise ValueError(f"not as the generator writes it: {error}") from error


def _exponential(*parts: str) -> float:
    """An exponentially distributed number, the same for the same texts on every machine."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    bits = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 11
    return -math.log((bits + 0.5) / 2**53)

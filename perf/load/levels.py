"""How much a load generator sends, and the loop of its process: levels in, records out.

A level is a line of JSON on stdin. It is answered with a line of JSON for each request as soon as
that is answered, and an empty line after the last; one is printed at first, once the process can
begin.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count

from perf.load.loop import Connect, closed_loop
from perf.load.measure import Policy, Record
from perf.load.requests import Request, requests

LOST = "the load generator lost the server"


@dataclass(frozen=True)
class LevelArguments:
    """``clients`` of a closed loop; what is sent is the mixed load, or ``bodies`` in turns."""

    clients: int
    seed: int
    policy: Policy
    bodies: Sequence[str] = ()

    @classmethod
    def warm_up(cls, seed: int) -> LevelArguments:
        """A few requests, other ones than will be measured; their figures are thrown away."""
        return cls(clients=8, seed=seed + 1, policy=Policy(min_requests=8, min_s=0, max_s=60))

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> LevelArguments:
        """What ``to_json`` wrote."""
        read = json.loads(line)
        return cls(**{**read, "policy": Policy(**read["policy"])})

    def stream(self) -> Iterator[Request]:
        """Endless requests."""
        if self.bodies:
            size = len(self.bodies)
            return (Request(index, self.bodies[index % size], 0, 0) for index in count())
        return requests(self.seed)


def serve_levels(connect: Connect) -> None:
    """Run each level that stdin names; ends the process with one line where the server is lost."""
    print(flush=True)
    for line in sys.stdin:
        arguments = LevelArguments.from_json(line)
        try:
            stream, policy = arguments.stream(), arguments.policy
            asyncio.run(closed_loop(connect, arguments.clients, stream, policy, print_record))
        except asyncio.TimeoutError:
            sys.exit(f"{LOST}: no answer within {arguments.policy.answer_timeout_s:.0f} s")
        except OSError as error:
            sys.exit(f"{LOST}: {error}")
        print(flush=True)


def print_record(record: Record) -> None:
    """One line on stdout, at once: the parent's progress bar waits for it."""
    print(json.dumps(asdict(record)), flush=True)

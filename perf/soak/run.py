"""Sends the requests of a soak from many clients at once, and keeps what there is to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from perf.soak.check import Checker
from perf.soak.client import Client, Outcome
from perf.soak.draw import Drawer
from perf.soak.malformed import malformed
from perf.soak.request import SoakRequest

MALFORMED, ABANDONED = 0.1, 0.1
MOST_PROBLEMS = 100


@dataclass(frozen=True)
class Problem:
    """A wrong answer, and the request to replay it with (``--only``)."""

    number: int
    what: str
    request: dict[str, Any]


@dataclass
class Tally:
    """What came of the requests so far."""

    num_answered: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    ways: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)  # by way, of valid requests
    problems: list[Problem] = field(default_factory=list)
    num_problems: int = 0
    num_hung: int = 0
    refusals: dict[str, str] = field(default_factory=dict)  # label -> status and text

    def count(self, request: SoakRequest, outcome: Outcome, problem: str | None) -> None:
        self.num_answered += 1
        _add(self.kinds, request.kind)
        _add(self.ways, f"{request.served_name} {request.way}")
        _add(self.statuses, f"{request.kind} {outcome.status}")
        self.num_hung += outcome.hung
        if request.kind == "malformed":
            self.refusals[f"{request.label} ({request.way})"] = f"{outcome.status} {outcome.error}"
        elif request.kind != "abandoned":
            self.seconds.setdefault(request.way, []).append(outcome.seconds)
        if problem:
            self.num_problems += 1
            if len(self.problems) < MOST_PROBLEMS:
                self.problems.append(Problem(request.number, problem, asdict(request)))


def _add(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


class Requests:
    """The request of each number, for one seed."""

    def __init__(self, seed: int, num_cases: int = 120) -> None:
        self.drawer = Drawer(seed, num_cases)

    def __call__(self, number: int) -> SoakRequest:
        rng = self.drawer.rng(number)
        kind = rng.random()
        if kind < MALFORMED:
            return malformed(rng, number)
        if kind < MALFORMED + ABANDONED:
            return self.drawer.abandoned(rng, number)
        return self.drawer.valid(rng, number)


async def send_all(
    client: Client,
    requests: Iterable[SoakRequest],
    num_clients: int,
    checker: Checker,
    tally: Tally,
    after_each: Callable[[], None],
) -> None:
    """Each client sends the next request when its last is over."""
    waiting: Iterator[SoakRequest] = iter(requests)

    async def run() -> None:
        for request in waiting:
            outcome = await client.send(request)
            tally.count(request, outcome, checker.problem(request, outcome))
            after_each()

    await asyncio.gather(*(run() for _ in range(num_clients)))

"""Random requests from many callers at once, some malformed and some abandoned: every answer is
right or refused, nothing runs for nobody afterwards, and no memory is lost.

``SOAK_REQUESTS=10000`` makes it long; only then memory has settled enough to be compared.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from tests.server.soak.check import Checker
from tests.server.soak.client import Client
from tests.server.soak.reference import SoakReference
from tests.server.soak.requests import MODELS, SoakRequest, drawn, fills
from tests.server.soak.watch import grown, memory_mib, still_busy
from tests.support.one_server import OneServer
from tests.support.triton import DEMO_MODEL, Triton

pytestmark = [pytest.mark.server, pytest.mark.slow]

NUM_REQUESTS = int(os.environ.get("SOAK_REQUESTS", "200"))
SEED = int(os.environ.get("SOAK_SEED", "0"))
NUM_CLIENTS, NUM_CASES, LEAST_FOR_MEMORY = 24, 12, 5000


async def fill(triton: Triton) -> None:
    """Takes all memory that can be taken."""
    listen = triton.server.listen
    client = Client(listen.client_host(), listen.http_port, listen.grpc_port, timeout_s=600)
    for request in fills():
        outcome = await client.send(request)
        assert outcome.status == 200, outcome.error or "no answer in time"
    await client.close()


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models(*MODELS)


def soak(
    triton: Triton, checker: Checker, requests: Iterator[SoakRequest], most: dict[str, float]
) -> list[str]:
    """Sends all of them, each caller the next when its last is over; what was wrong. ``most`` is
    told the most memory that each process held.
    """
    listen, problems = triton.server.listen, list[str]()

    async def send() -> None:
        client = Client(listen.client_host(), listen.http_port, listen.grpc_port, timeout_s=120)

        async def caller() -> None:
            for request in requests:
                problem = checker.problem(request, await client.send(request))
                if problem:
                    problems.append(f"{problem}; {request}")
                if request.number % 50 == 0:
                    for name, held in memory_mib(triton.server).items():
                        most[name] = max(held, most.get(name, 0.0))

        await asyncio.gather(*(caller() for _ in range(NUM_CLIENTS)))
        await client.close()

    asyncio.run(send())
    return problems


def test_random_requests_are_answered_right_or_refused(triton: Triton) -> None:
    checker = Checker(SoakReference(DEMO_MODEL))

    def requests(first: int, last: int) -> Iterator[SoakRequest]:
        return (drawn(SEED, number, NUM_CASES) for number in range(first, last))

    if NUM_REQUESTS >= LEAST_FOR_MEMORY:
        asyncio.run(fill(triton))
    warm_up, most = NUM_REQUESTS // 3, dict[str, float]()
    assert soak(triton, checker, requests(0, warm_up), most) == []
    assert not still_busy(triton.server), "something still runs for nobody"
    assert soak(triton, checker, requests(warm_up, NUM_REQUESTS), {}) == []
    assert not still_busy(triton.server), "something still runs for nobody"
    if NUM_REQUESTS >= LEAST_FOR_MEMORY:
        assert grown(most, memory_mib(triton.server)) == []

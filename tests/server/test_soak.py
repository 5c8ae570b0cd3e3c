"""Random requests with all options, some malformed and some abandoned: the soak of perf/, short."""

from __future__ import annotations

import asyncio

import pytest

from perf.soak.check import Checker
from perf.soak.client import Client
from perf.soak.draw import MODELS
from perf.soak.reference import SoakReference
from perf.soak.run import Requests, Tally, send_all
from perf.soak.server import Served
from tests.support.one_server import OneServer
from tests.support.triton import DEMO_MODEL, Triton

pytestmark = [pytest.mark.server, pytest.mark.slow]

NUM_REQUESTS, NUM_CLIENTS, NUM_CASES = 200, 24, 12


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models(*MODELS)


def test_random_requests_are_answered_right_or_refused(triton: Triton) -> None:
    checker, tally = Checker(SoakReference(DEMO_MODEL, default_max_tokens=128)), Tally()
    requests = Requests(seed=0, num_cases=NUM_CASES)
    listen = triton.server.listen

    async def send() -> None:
        client = Client(listen.client_host(), listen.http_port, listen.grpc_port, timeout_s=60)
        drawn = map(requests, range(NUM_REQUESTS))
        await send_all(client, drawn, NUM_CLIENTS, checker, tally, lambda: None)
        await client.close()

    asyncio.run(send())

    assert not tally.problems
    assert tally.num_answered == NUM_REQUESTS
    assert not Served(triton.server).wait_idle(), "something still runs for nobody"

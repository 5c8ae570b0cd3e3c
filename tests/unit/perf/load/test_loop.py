"""A closed loop against a target made of sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from perf.load.loop import Answer, AnswerError, Ask, closed_loop
from perf.load.measure import Policy, Record
from perf.load.requests import Request, requests


class Sleeper:
    """Answers after a moment; knows how many requests were in it at once, at most."""

    def __init__(self) -> None:
        self.num_running = 0
        self.most_running = 0

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Ask]:
        yield self.ask

    async def ask(self, request: Request) -> Answer:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await asyncio.sleep(0.002)
        self.num_running -= 1
        if request.index == 3:
            raise AnswerError("no luck")
        return Answer(request.max_tokens, chunk_s=[1.5])


def run(clients: int, policy: Policy) -> tuple[Sleeper, list[Record]]:
    sleeper, records = Sleeper(), list[Record]()
    asyncio.run(closed_loop(sleeper.connect, clients, requests(0), policy, records.append))
    return sleeper, records


def test_all_callers_run_at_once_and_every_request_is_reported_once() -> None:
    sleeper, records = run(4, Policy(min_requests=20, min_s=0, max_s=60))
    assert sleeper.most_running == 4
    assert sorted(record.index for record in records) == list(range(20))
    assert all(record.done_s > record.sent_s for record in records)
    assert all(record.chunk_s == [1.5] for record in records if not record.problem)
    assert all(record.process_cpu_s > 0 for record in records)


def test_a_bad_answer_is_a_problem_of_its_request_alone() -> None:
    _, records = run(2, Policy(min_requests=10, min_s=0, max_s=60))
    assert {r.index: r.problem for r in records if r.problem} == {3: "no luck"}
    assert all(r.num_output_tokens == r.max_tokens for r in records if not r.problem)


def test_the_time_limit_ends_a_level_short_of_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter(range(10**6))
    clock = SimpleNamespace(  # a second goes by with every look at it
        perf_counter=lambda: float(next(looks)), process_time=time.process_time
    )
    monkeypatch.setattr("perf.load.loop.time", clock)
    _, records = run(1, Policy(min_requests=10**9, min_s=0, max_s=10))
    # The loop's begin; then, for each answer, whether to go on, when it is sent and when done.
    assert [(record.sent_s, record.done_s) for record in records] == [(2, 3), (5, 6), (8, 9)]

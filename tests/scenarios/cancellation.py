"""Scenarios: clients that leave free their slot. ``tight`` runs one request and holds two more."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.scenarios.endpoint import Model
from tests.scenarios.reference import Reference

PROMPT = "Once"
LONG = {"max_tokens": 1000, "min_tokens": 1000}
NUM_LEAVING = 6  # twice what the model holds
CountCancelled = Callable[[], float]
SETTLED_S = 1.5  # metrics are published once a second


def long_run_s(model: Model) -> float:
    """How long a request takes that nobody leaves."""
    started = time.monotonic()
    assert model.ask("tensors", PROMPT, **LONG).ok
    return time.monotonic() - started


def settled(count: CountCancelled) -> float:
    """The count once nothing is added to it any more: requests that an earlier test left may end,
    and be published, after that test.
    """
    value, since = count(), time.monotonic()
    while time.monotonic() < since + SETTLED_S:
        time.sleep(0.1)
        if count() != value:
            value, since = count(), time.monotonic()
    return value


class Cancellation:
    """``model`` is ``tight``; ``count_cancelled`` what it says on ``/metrics``."""

    def test_a_stream_that_is_left_frees_its_slot(
        self, model: Model, reference: Reference, count_cancelled: CountCancelled
    ) -> None:
        before, run_s = settled(count_cancelled), long_run_s(model)
        started = time.monotonic()
        for _ in range(NUM_LEAVING):
            request = model.streaming(PROMPT, **LONG)
            with model.endpoint.left_stream(model.engine.name, request) as first:
                assert first.ok, first.error
        reply = model.ask("tensors", PROMPT, max_tokens=5)

        assert reply.text() == reference.text(PROMPT, 5)
        assert time.monotonic() - started < NUM_LEAVING / 2 * run_s
        assert_in_time(lambda: count_cancelled() - before == NUM_LEAVING)

    def test_a_call_that_is_cancelled_frees_its_slot(
        self, model: Model, reference: Reference, count_cancelled: CountCancelled
    ) -> None:
        before, run_s = settled(count_cancelled), long_run_s(model)
        started = time.monotonic()
        for _ in range(NUM_LEAVING):
            request = model.by_tensors(PROMPT, **LONG)
            with model.endpoint.cancelled_infer(model.name, request) as is_answered:
                time.sleep(0.1)
                assert not is_answered()
        reply = model.ask("tensors", PROMPT, max_tokens=5)

        assert reply.text() == reference.text(PROMPT, 5)
        assert time.monotonic() - started < NUM_LEAVING / 2 * run_s
        # One that was cancelled on its way to the engine is not counted.
        assert_in_time(lambda: 0 < count_cancelled() - before <= NUM_LEAVING)

    def test_who_leaves_while_waiting_frees_its_place(
        self, model: Model, reference: Reference, count_cancelled: CountCancelled
    ) -> None:
        before = settled(count_cancelled)
        running = model.streaming(PROMPT, **LONG)
        waiting = model.by_tensors("I am going", **LONG)
        with model.endpoint.left_stream(model.engine.name, running) as first:
            assert first.ok, first.error
            for _ in range(NUM_LEAVING):
                with model.endpoint.cancelled_infer(model.name, waiting) as is_answered:
                    time.sleep(0.1)
                    assert not is_answered(), "there was a place in the queue"
                time.sleep(0.05)

        assert model.ask("tensors", PROMPT, max_tokens=5).text() == reference.text(PROMPT, 5)
        assert_in_time(lambda: 0 < count_cancelled() - before <= NUM_LEAVING + 1)


def assert_in_time(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)

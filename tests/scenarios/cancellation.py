"""Scenarios: clients that leave free their slot. ``tight`` runs one request and holds two more."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.scenarios.endpoint import Model
from tests.scenarios.metrics import ReadMetric, settled
from tests.scenarios.reference import Reference
from tests.support.triton import eventually

PROMPT = "Once"
LONG = {"max_tokens": 1000, "min_tokens": 1000}
NUM_LEAVING = 6  # twice what the model holds
NUM_LATE = 2  # so many may be at their end before a busy machine lets their callers go
CountFinished = Callable[[str], float]


class Cancellation:
    """``model`` is ``tight``; ``count_finished`` what it says on ``/metrics`` by finish reason."""

    @pytest.fixture
    def count_finished(self, read_metric: ReadMetric) -> CountFinished:
        return lambda reason: read_metric("hf_triton_finished_total", finish_reason=reason)

    def test_a_stream_that_is_left_frees_its_slot(
        self, model: Model, reference: Reference, count_finished: CountFinished
    ) -> None:
        ended = Ended(count_finished, model.settled_s)
        for _ in range(NUM_LEAVING):
            request = model.streaming(PROMPT, **LONG)
            with model.endpoint.left_stream(model.engine.name, request) as first:
                assert first.ok, first.error
        reply = model.ask("tensors", PROMPT, max_tokens=5)

        assert reply.text() == reference.text(PROMPT, 5)
        assert eventually(lambda: ended.by("length") + ended.by("cancelled") == NUM_LEAVING + 1)
        assert ended.by("cancelled") >= NUM_LEAVING - NUM_LATE, "what was left went on to its end"

    def test_who_leaves_while_waiting_frees_its_place(
        self, model: Model, reference: Reference, count_finished: CountFinished
    ) -> None:
        ended = Ended(count_finished, model.settled_s)
        running = model.streaming(PROMPT, **LONG)
        waiting = model.by_tensors("I am going", **LONG)

        def finds_a_place() -> bool:
            with model.endpoint.cancelled_infer(model.name, waiting) as is_answered:
                time.sleep(0.1)
                return not is_answered()

        with model.endpoint.left_stream(model.engine.name, running) as first:
            assert first.ok, first.error
            for _ in range(NUM_LEAVING):
                assert eventually(finds_a_place), "who left keeps a place in the queue"

        assert model.ask("tensors", PROMPT, max_tokens=5).text() == reference.text(PROMPT, 5)
        assert eventually(lambda: 0 < ended.by("cancelled") <= NUM_LEAVING + 1)


class Ended:
    """Counts requests that ended since it was made, by finish reason."""

    def __init__(self, count: CountFinished, settled_s: float) -> None:
        reasons = ("length", "cancelled")
        self._count = count
        self._before = settled(lambda: {why: count(why) for why in reasons}, settled_s)

    def by(self, reason: str) -> float:
        return self._count(reason) - self._before[reason]

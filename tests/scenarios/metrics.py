"""Scenarios: what a model counts, under its public name, on ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from tests.scenarios.endpoint import Model
from tests.scenarios.reference import Reference
from tests.support.triton import eventually

ReadMetric = Callable[..., float]
Numbers = TypeVar("Numbers")
SETTLED_S = 2.0  # a real model publishes its metrics once a second
PROMPT = "I am going"
TOTALS: tuple[tuple[str, dict[str, str]], ...] = (
    ("hf_triton_prompt_tokens_total", {}),
    ("hf_triton_generated_tokens_total", {}),
    ("hf_triton_finished_total", {"finish_reason": "length"}),
    ("hf_triton_time_to_first_token_seconds_count", {}),
    ("hf_triton_queue_time_seconds_count", {}),
)


class Metrics:
    """``read_metric`` gives one number of ``model`` by its name and labels."""

    def test_requests_and_streams_are_counted_alike(
        self, model: Model, reference: Reference, read_metric: ReadMetric
    ) -> None:
        before = settled(lambda: read_all(read_metric), model.settled_s)

        for _ in range(2):
            assert model.ask("tensors", PROMPT, max_tokens=6).ok
        assert model.engine.stream(PROMPT, max_tokens=8)

        num_prompt_tokens = reference.num_tokens(PROMPT)
        expected = [3 * num_prompt_tokens, 2 * 6 + 8, 3, 3, 3]
        wait_for(lambda: differences(before, read_all(read_metric)), expected)
        wait_for(lambda: [read_metric("hf_triton_running")], [0])

    def test_refused_requests_are_not_counted_as_work(
        self, model: Model, read_metric: ReadMetric
    ) -> None:
        before = settled(lambda: read_all(read_metric), model.settled_s)

        assert model.ask("tensors", PROMPT, max_tokens=0).status == 400

        assert settled(lambda: read_all(read_metric), model.settled_s) == before


def settled(read: Callable[[], Numbers], settled_s: float = SETTLED_S) -> Numbers:
    """Reads until nothing changes any more: an earlier test's numbers may be published after its
    end.
    """
    value, since = read(), time.monotonic()
    while time.monotonic() < since + settled_s:
        time.sleep(settled_s / 20)
        if (now := read()) != value:
            value, since = now, time.monotonic()
    return value


def read_all(read_metric: ReadMetric) -> list[float]:
    return [read_metric(name, **labels) for name, labels in TOTALS]


def differences(before: list[float], after: list[float]) -> list[float]:
    return [new - old for old, new in zip(before, after, strict=True)]


def wait_for(read: Callable[[], list[float]], expected: list[Any]) -> None:
    """Returns when ``read`` gives what is expected; metrics are published once a second."""
    assert eventually(lambda: read() == expected), read()

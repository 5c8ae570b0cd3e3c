"""Counts are published as they change, by names and labels that Prometheus reads."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from hf_triton.runtime.devices import device as devices
from hf_triton.runtime.engine.triton_model import LoadMetrics
from hf_triton.runtime.metrics import publishing
from hf_triton.runtime.metrics.publishing import (
    Family,
    Histogram,
    MetricsPublisher,
    Sample,
    histogram_families,
)
from tests.support.triton import eventually

LABELS = {"model": "demo"}


class FakeMetric:
    def __init__(self, labels: dict[str, str]) -> None:
        self.labels, self.number, self.num_calls = labels, 0.0, 0

    def increment(self, value: float) -> None:
        assert value > 0, "a counter never falls"
        self.number += value
        self.num_calls += 1

    def set(self, value: float) -> None:
        self.number = value
        self.num_calls += 1


class FakeFamily:
    COUNTER, GAUGE = 0, 1
    made: ClassVar[list[FakeFamily]] = []
    broken = False

    def __init__(self, name: str, description: str, kind: int) -> None:
        if self.broken:
            raise RuntimeError("metrics are\nnot allowed")
        self.name, self.kind, self.metrics = name, kind, list[FakeMetric]()
        self.made.append(self)

    def Metric(self, labels: dict[str, str]) -> FakeMetric:  # noqa: N802, Triton's own name
        self.metrics.append(FakeMetric(labels))
        return self.metrics[-1]


class FakePbUtils:
    MetricFamily = FakeFamily


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "PUBLISH_EVERY_S", 0.01)
    monkeypatch.setattr(FakeFamily, "made", [])


def test_totals_grow_by_what_is_new_and_gauges_are_set() -> None:
    numbers = {"total": 3.0, "now": 5.0}

    def collect() -> list[Family]:
        return [
            Family("a_total", "A", True, (Sample({"why": "x"}, numbers["total"]),)),
            Family("b", "B", False, (Sample({}, numbers["now"]),)),
        ]

    publisher = MetricsPublisher(FakePbUtils, LABELS, collect)
    total, now = (family.metrics[0] for family in FakeFamily.made)
    assert (total.labels, total.number) == ({"model": "demo", "why": "x"}, 0)
    assert (now.labels, now.number) == (LABELS, 5)
    numbers.update(total=7, now=0)
    assert eventually(lambda: (total.number, now.number) == (4, 0))
    calls = total.num_calls
    numbers["now"] = 2
    assert eventually(lambda: now.number == 2)
    assert total.num_calls == calls, "nothing is sent of what has not changed"
    numbers["total"] = 8
    publisher.close()
    assert total.number == 5, "the last numbers are published"
    assert now.number == 0, "of what is gone nothing is there"


def test_a_gauge_that_another_process_has_set_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    families = [
        Family("a_total", "A", True, (Sample({}, 3.0),)),
        Family("b", "B", False, (Sample({}, 5.0),)),
    ]
    publisher = MetricsPublisher(FakePbUtils, LABELS, lambda: families)
    total, now = (family.metrics[0] for family in FakeFamily.made)
    now.set(0)  # as the one before it ends
    assert eventually(lambda: now.number == 5)
    publisher.close()
    assert total.num_calls == 0


def test_what_was_counted_before_is_not_published() -> None:
    numbers = iter((1.0, 2.0, 2.0, 2.0, 5.0))

    def collect() -> list[Family]:
        return [Family("a_total", "A", True, (Sample({}, next(numbers, 5.0)),))]

    publisher = MetricsPublisher(FakePbUtils, LABELS, collect)
    (total,) = (family.metrics[0] for family in FakeFamily.made)
    assert eventually(lambda: total.number == 3)
    publisher.close()


def test_a_server_without_metrics_is_told_once_and_serves(
    monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    monkeypatch.setattr(FakeFamily, "broken", True)
    family = Family("a_total", "A", True, (Sample({}, 1),))
    publisher: Any = MetricsPublisher(FakePbUtils, LABELS, lambda: [family])
    publisher.close()
    assert log_lines == ["W metrics are not published: RuntimeError: metrics are not allowed"]


def test_a_histogram_is_its_cumulative_buckets_sum_and_count() -> None:
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 99):
        histogram.observe(value)
    buckets, total, count = histogram_families("x_seconds", "X", {(): histogram})
    assert buckets.name == "x_seconds_bucket"
    found = [(sample.labels["le"], sample.value) for sample in buckets.samples]
    assert found == [("1", 2), ("2.5", 3), ("+Inf", 4)]
    assert (total.name, total.samples[0].value) == ("x_seconds_sum", 102.5)
    assert (count.name, count.samples[0].value) == ("x_seconds_count", 4)


def test_a_loaded_model_tells_what_it_took_and_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: [0, 4 * gib, 0][index])
    free = {"cpu": 5 * gib + 7, "cuda:1": 9 * gib - 1}
    monkeypatch.setattr(devices, "free_bytes", lambda device: free[str(device)])
    memory, seconds = LoadMetrics().families()
    found = {(one.labels["device"], one.labels["kind"]): one.value for one in memory.samples}
    assert found.pop(("cpu", "loaded")) > 50 * 2**20  # torch, if nothing else
    assert found == {
        ("cpu", "free"): 5 * gib,
        ("cuda:1", "loaded"): 4.5 * gib,  # with the CUDA context
        ("cuda:1", "free"): 9 * gib - 64 * 2**20,
    }
    assert seconds.samples[0].value > 0

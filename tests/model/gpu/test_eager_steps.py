"""Decode steps of models that no runner over pages holds."""

from __future__ import annotations

import pytest

from tests.model.gpu.fake.engine import engine_on
from tests.model.gpu.fake.gpu import GIB, FakeGpu
from tests.model.gpu.test_decode_steps import BUDGET, budget_of
from tests.model.gpu.tiny_models import tiny_on_gpu


@pytest.mark.parametrize("name", ["bloom"])
def test_a_decode_step_that_nothing_captures_copies_and_waits_no_more(name: str) -> None:
    with FakeGpu(total_bytes=2 * GIB) as gpu, engine_on(gpu, tiny_on_gpu(name)) as fake:
        log = fake.decode_step(*(fake.sequence(10) for _ in range(3)))
        assert fake.engine.runner.name == "cache"
    assert BUDGET.covers(budget_of(log)), log.told("h2d", "d2h", "wait")

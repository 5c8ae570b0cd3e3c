"""What a decode step copies and waits for,, whatever the way of sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.model.gpu.fake.engine import FakeEngine, engine_on
from tests.model.gpu.fake.events import Log
from tests.model.gpu.fake.gpu import GIB, FakeGpu
from tests.model.gpu.tiny_models import tiny_on_gpu


class Budget(NamedTuple):
    """Copies to the device, copies back, and waits of the host."""

    copies_in: int
    copies_out: int
    waits: int

    def covers(self, other: Budget) -> bool:
        return all(most >= got for most, got in zip(self, other, strict=True))


_SAMPLED = {"temperature": 0.7, "seed": 1}
# Of a step of any sequences: one buffer in, one out, and a wait for the latter.
BUDGET = Budget(1, 1, 1)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": _SAMPLED,
    "top_k and top_p": {**_SAMPLED, "top_k": 40, "top_p": 0.9},
    "top_p": {**_SAMPLED, "top_p": 0.9},
    "min_p": {**_SAMPLED, "min_p": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "presence_penalty": {"presence_penalty": 0.1},
    "logit_bias": {"logit_bias": ((3, 1.0),)},
    "bad words": {"bad_token_ids": ((3,), (4, 5))},
    "min_tokens": {"min_tokens": 30, "stop_token_ids": (9,)},
    "logprobs": {"num_logprobs": 5},
}


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeEngine]:
    with (
        FakeGpu(total_bytes=2 * GIB) as gpu,
        engine_on(gpu, tiny_on_gpu("llama"), max_num_seqs=len(WAYS)) as engine,
    ):
        yield engine


def budget_of(log: Log) -> Budget:
    return Budget(log.count("h2d"), log.count("d2h"), log.count("wait"))


@pytest.mark.parametrize("way", WAYS)
def test_a_decode_step_copies_and_waits_no_more_than_this(fake: FakeEngine, way: str) -> None:
    log = fake.decode_step(*(fake.sequence(10, **WAYS[way]) for _ in range(3)))
    assert BUDGET.covers(budget_of(log)), f"{budget_of(log)}\n{log.told('h2d', 'd2h', 'wait')}"
    assert fake.gpu.problems == []


def test_a_step_of_every_way_at_once_copies_and_waits_no_more_than_this(fake: FakeEngine) -> None:
    log = fake.decode_step(*(fake.sequence(10, **params) for params in WAYS.values()))
    assert BUDGET.covers(budget_of(log)), f"{budget_of(log)}\n{log.told('h2d', 'd2h', 'wait')}"


def test_a_step_of_prompts_copies_and_waits_no_more_than_this(fake: FakeEngine) -> None:
    running = [fake.sequence(10), fake.sequence(10)]
    fake.step(*running)
    fake.step()
    joining = [fake.sequence(10), fake.sequence(25)]
    log = fake.step(*joining)
    fake.end(*running, *joining)
    assert BUDGET.covers(budget_of(log)), log.told("h2d", "d2h", "wait")

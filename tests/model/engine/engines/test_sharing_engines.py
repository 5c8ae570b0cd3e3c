"""With shared prefixes greedy tokens stay ``model.generate``'s, for every way to compute a step,
while prompts that begin alike join and leave in mid-flight.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from hf_triton.runtime.errors import EngineError
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.memory import state_pages
from tests.support.driving import Answers, generate_all, running, setup
from tests.support.tiny_models import VOCAB_SIZE, Asked, reference, tiny_model

SMALL: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 24}


@pytest.fixture(autouse=True)
def four_tokens_are_worth_sharing(monkeypatch: pytest.MonkeyPatch, small_pages: None) -> None:
    monkeypatch.setattr(state_pages, "MIN_TOKENS", 4)


def conversations(model: Any, count: int) -> tuple[list[Asked], list[tuple[int, ...]]]:
    """Two system prompts (longer than WINDOW), a first turn and a second one after its answer, and
    strangers between them -> all, in an order that is mixed, and their tokens.
    """
    rnd = random.Random(1)

    def ids(length: int) -> list[int]:
        return [rnd.randrange(1, VOCAB_SIZE) for _ in range(length)]

    systems = [ids(31), ids(12)]
    first = [Asked(systems[at % 2] + ids(at % 5 + 1), 4 + at % 6) for at in range(count)]
    answers = reference(model, first)
    second = [
        Asked(asked.prompt + list(answer) + ids(3), 5)
        for asked, answer in zip(first, answers, strict=True)
    ]
    everyone = [
        one for turns in zip(first, second, strict=True) for one in (*turns, Asked(ids(9), 3))
    ]
    return everyone, reference(model, everyone)


def tokens_of(
    engine: InFlightEngine, asked: list[Asked], at_first: int = 3
) -> list[tuple[int, ...]]:
    with running(engine):
        return generate_all(engine, asked, at_first)


@pytest.mark.parametrize(
    "name, storage_kind",
    [
        *(("mistral", "compiled"), ("falcon-alibi", "compiled")),
        *(("llama", "few pages"), ("gemma2", "few pages"), ("gpt2", "few pages")),
    ],
    indirect=["storage_kind"],
)
def test_shared_prefixes_leave_greedy_tokens_as_they_are(name: str, storage_kind: str) -> None:
    model = tiny_model(name)
    asked, expected = conversations(model, 5)
    engine = InFlightEngine(setup(model, **SMALL))
    assert tokens_of(engine, asked) == expected
    assert engine.metrics.num_reused_prompt_tokens > sum(len(one.prompt) for one in asked) / 4


@pytest.mark.usefixtures("storage_kind")
def test_without_the_option_nothing_is_shared() -> None:
    model = tiny_model("llama")
    asked, expected = conversations(model, 3)
    engine = InFlightEngine(setup(model, **SMALL, prefix_cache=False))
    assert tokens_of(engine, asked) == expected
    assert engine.metrics.num_reused_prompt_tokens == 0


@pytest.mark.usefixtures("storage_kind")
def test_what_a_failed_step_left_is_shared_with_nobody() -> None:
    model = tiny_model("llama")
    asked, expected = conversations(model, 2)
    answers = Answers()
    with running(InFlightEngine(setup(model, **SMALL))) as engine:
        assert isinstance(engine, InFlightEngine)
        assert generate_all(engine, asked, at_first=2) == expected
        forward = engine.runner.forward

        def failing(step: Step) -> torch.Tensor:
            for stored in (*engine.runner.cache.keys, *engine.runner.cache.values):
                stored.fill_(9.0)
            raise RuntimeError("boom")

        engine.runner.forward = failing  # type: ignore[method-assign]
        engine.submit([answers.sequence(0, asked[0].prompt, max_tokens=2)])
        assert isinstance(answers.wait(1)[0], EngineError)
        engine.runner.forward = forward  # type: ignore[method-assign]
        assert generate_all(engine, asked, at_first=2) == expected

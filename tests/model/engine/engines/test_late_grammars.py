"""A grammar that takes longer than a step changes no token of its own or of others."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.structured.constraint import Constraint
from tests.model.engine.sampling.test_batches import EveryThird
from tests.support.driving import Answers, running, setup
from tests.support.tiny_models import VOCAB_SIZE, tiny_model

ANYTHING = Constraint("regex", (".*",))
OPTIONS: dict[str, Any] = {"max_num_seqs": 5, "max_num_batched_tokens": 24, "max_model_len": 96}


class SometimesLate(EveryThird):
    """Takes longer than a step waits for it, now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random, self._ends = random.Random(seed), os.pipe()
        process = SimpleNamespace(fileno=partial(int, self._ends[0]))  # nobody writes to the pipe
        self.following: Any = SimpleNamespace(process=process)
        self._ready_s, self.num_late = 0.0, 0

    def __del__(self) -> None:
        for end in self._ends:
            os.close(end)

    @property
    def is_ready(self) -> bool:
        return time.monotonic() >= self._ready_s

    def tell(self, token_id: int) -> None:
        if self._random.random() < 0.2:
            self._ready_s = time.monotonic() + 0.08
            self.num_late += 1


class Late(SometimesLate):
    """Allows everything; says so when it is told to or, where it is ``waited_for``, a moment after
    it is asked.
    """

    def __init__(self, *, waited_for: bool = False) -> None:
        super().__init__(0)
        self.says_it, self._waited_for = threading.Event(), waited_for
        self.says_it.set()

    @property
    def is_ready(self) -> bool:
        is_over = self._waited_for and time.monotonic() > self._ready_s
        return is_over or self.says_it.is_set()

    def mask(self) -> bytes:
        while not self.is_ready:
            time.sleep(0.001)
        return b"\xff" * (-(-VOCAB_SIZE // 32) * 4)

    def tell(self, token_id: int) -> None:
        if not self.num_late:
            self.says_it.clear()
        self.num_late, self._ready_s = self.num_late + 1, time.monotonic() + 0.02

    def follow(self, token_id: int) -> None:
        """All are allowed."""


HELD: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5, "seed": 3},
    {"repetition_penalty": 1.3, "frequency_penalty": 1.5},
    {"bad_token_ids": tuple((a, b) for a in range(40) for b in range(0, VOCAB_SIZE, 2))},
]


@pytest.mark.parametrize("together", [True, False], ids=["together", "alone"])
def test_late_grammars_change_no_token(together: bool) -> None:
    """Alone, a step that is prepared may not be sampled at all."""
    found = []
    for compiled in (True, False):
        answers = Answers()
        made = replace(setup(tiny_model("llama"), **OPTIONS), compiled=compiled)
        asked = [
            answers.sequence(n, [5, 6, n], max_tokens=12, constraint=ANYTHING, **way)
            for n, way in enumerate(HELD)
        ]
        for number, one in enumerate(asked):
            one.grammar = SometimesLate(number + 10 * compiled)
        grammars = [one.grammar for one in asked]
        with running(InFlightEngine(made)) as engine:
            if together:
                engine.submit(asked)
            for number, one in enumerate(asked):
                if not together:
                    engine.submit([one])
                answers.completion(number)
        found.append([answers.completion(number) for number in range(len(asked))])
        assert sum(grammar.num_late for grammar in grammars) > 2  # type: ignore[union-attr]
    assert found[0] == found[1]


@pytest.mark.threat("endless-grammars")
@pytest.mark.parametrize(
    "architecture, storage_kind",
    [("llama", "few pages"), ("bloom", "compiled")],
    indirect=["storage_kind"],
)
def test_nobody_waits_for_a_grammar_that_takes_long(architecture: str, storage_kind: str) -> None:
    with running(InFlightEngine(setup(tiny_model(architecture)))) as engine:
        answers, grammar = Answers(), Late()
        late = answers.sequence(0, [5, 6, 7], max_tokens=9, constraint=ANYTHING)
        late.grammar = grammar
        engine.submit([late])
        engine.submit([answers.sequence(1, [5, 6], max_tokens=20)])
        assert len(answers.completion(1).token_ids) == 20
        assert len(late.token_ids) == 1
        grammar.says_it.set()
        engine.submit([answers.sequence(2, [5, 6, 7], max_tokens=9)])
        assert answers.completion(0).token_ids == answers.completion(2).token_ids


@pytest.mark.usefixtures("storage_kind")
def test_a_state_takes_no_token_twice_where_a_grammar_takes_long() -> None:
    with running(InFlightEngine(setup(tiny_model("mamba2")))) as engine:
        answers = Answers()
        late = answers.sequence(0, [5, 6, 7], max_tokens=9, constraint=ANYTHING)
        late.grammar = Late(waited_for=True)
        engine.submit([late, answers.sequence(1, [5, 6, 7], max_tokens=9)])
        assert answers.completion(0).token_ids == answers.completion(1).token_ids

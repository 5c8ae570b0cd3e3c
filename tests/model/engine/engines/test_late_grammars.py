"""A grammar that takes longer than a step changes no token of its own or of others."""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
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
        self._ready_s, self.num_late = 0.0, 0

    def __del__(self) -> None:
        for end in self._ends:
            os.close(end)

    @property
    def is_ready(self) -> bool:
        return time.monotonic() >= self._ready_s

    def fileno(self) -> int:
        """Of a pipe that nobody writes to."""
        return self._ends[0]

    def tell(self, token_id: int) -> None:
        if self._random.random() < 0.2:
            self._ready_s = time.monotonic() + 0.08
            self.num_late += 1


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

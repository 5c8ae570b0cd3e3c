"""In pages, with room and without, requests get the tokens that they get by compiled loops."""

from __future__ import annotations

import gc
import os
import random
import time
import weakref
from dataclasses import replace
from typing import Any

import pytest

from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.structured.constraint import Constraint
from tests.model.engine.sampling.test_batches import EveryThird
from tests.support.driving import Answers, Completion, running, setup
from tests.support.tiny_models import VOCAB_SIZE, tiny_model
from tests.support.triton import eventually

EOS = 7
ANYTHING = Constraint("regex", (".*",))
NUM_REQUESTS = 30
OPTIONS: dict[str, Any] = {"max_num_seqs": 5, "max_num_batched_tokens": 24, "max_model_len": 96}
# Eight pages for five sequences of up to six: some have to be preempted.
LITTLE_ROOM = {**OPTIONS, "kv_cache_gib": 9 * 16 * 2 * 2 * 2 * 8 * 4 / 2**30}
# What can only be known when the last token is, or depends on how many there are.
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5, "seed": 3},
    {"temperature": 1.0, "top_k": 9, "top_p": 0.8, "seed": 4},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"temperature": 2.0, "seed": 5, "presence_penalty": 1.0, "num_logprobs": 3},
    {"min_tokens": 9, "stop_token_ids": tuple(range(0, VOCAB_SIZE, 3))},
    {"bad_token_ids": tuple((a, b) for a in range(40) for b in range(0, VOCAB_SIZE, 2))},
    {"stop_words": (" 1", " 22"), "temperature": 1.0, "seed": 6},
    {"logit_bias": ((EOS, 20.0),), "min_tokens": 4},
]


def answers_of(*, compiled: bool, options: dict[str, Any]) -> list[Completion]:
    """The answers to a load of which some requests are cancelled."""
    rnd, answers = random.Random(1), Answers()
    made = replace(setup(tiny_model("llama"), eos=[EOS], **options), compiled=compiled)
    asked, gone = [], []
    for number in range(NUM_REQUESTS):
        prompt = [rnd.randrange(1, VOCAB_SIZE) for _ in range(rnd.choice([1, 5, 17, 26]))]
        way = {"max_tokens": rnd.choice([1, 60, 70]), **WAYS[number % len(WAYS)]}
        way["min_tokens"] = min(way.get("min_tokens", 0), way["max_tokens"])
        asked.append(answers.sequence(number, prompt, streams=rnd.random() < 0.5, **way))
        gone.append(answers.sequence(-1 - number, prompt, max_tokens=60, ignore_eos=True))
    with running(InFlightEngine(made)) as engine:
        engine.submit([one for pair in zip(asked, gone, strict=True) for one in pair])
        for number, one in enumerate(gone):
            answers.wait(number)
            engine.cancel([one])
        found = [answers.completion(number) for number in range(NUM_REQUESTS)]
        assert eventually(lambda: not engine.num_unfinished and not engine.gauges["kv_tokens_used"])
        assert isinstance(engine, InFlightEngine)
        if options is LITTLE_ROOM:
            assert engine.metrics.num_preempted > 2
        return found


@pytest.fixture(scope="module")
def expected() -> list[Completion]:
    return answers_of(compiled=True, options=OPTIONS)


@pytest.mark.parametrize("options", [OPTIONS, LITTLE_ROOM], ids=["room", "little room"])
def test_all_get_the_tokens_that_they_get_by_compiled_loops(
    expected: list[Completion], options: dict[str, Any]
) -> None:
    assert {one.finish_reason for one in expected} == {"stop", "length"}
    assert answers_of(compiled=False, options=options) == expected


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


def test_nothing_is_kept_of_what_ends() -> None:
    answers = Answers()
    made = replace(setup(tiny_model("llama"), eos=[EOS], **OPTIONS), compiled=False)
    with running(InFlightEngine(made)) as engine:
        ending = answers.sequence(0, [1, 2, 3], max_tokens=60, logit_bias=((EOS, 99.0),))
        kept = weakref.ref(ending)
        engine.submit([ending])
        del ending
        assert answers.completion(0).finish_reason == "stop"
        engine.submit([answers.sequence(1, [1, 2], max_tokens=9, ignore_eos=True)])
        answers.wait(2)
        assert eventually(lambda: gc.collect() >= 0 and kept() is None)

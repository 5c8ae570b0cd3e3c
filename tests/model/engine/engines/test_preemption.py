"""Sequences are computed again after pages run out: their outputs go on without a seam, whatever
grammar they follow, and all pages come back.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch

from hf_triton.runtime.errors import CancelledError, DeadlineError, EngineError
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.structured.constraint import Constraint
from tests.model.engine.sampling.test_batches import EveryThird
from tests.support.driving import Answers, Completion, running, setup
from tests.support.tiny_models import VOCAB_SIZE, tiny_model
from tests.support.triton import eventually

pytestmark = [
    pytest.mark.usefixtures("storage_kind"),
    pytest.mark.parametrize("storage_kind", ["few pages"], indirect=True),
]
NUM = 16
OPTIONS: dict[str, Any] = {"max_num_seqs": 5, "max_num_batched_tokens": 24, "max_model_len": 80}
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5, "seed": 3},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"temperature": 1.0, "seed": 7, "num_logprobs": 2},
    {"min_tokens": 9, "stop_token_ids": tuple(range(0, VOCAB_SIZE, 3))},
    {"stop_words": (" 1", " 22"), "temperature": 1.0, "seed": 6},
    {"bad_token_ids": tuple((a, b) for a in range(40) for b in range(0, VOCAB_SIZE, 2))},
    {"temperature": 1.0, "top_k": 9, "top_p": 0.8, "seed": 4},
    {"stop_words": (" 7 ", " 11"), "min_tokens": 4},
]


def load(answers: Answers, first: int = 0, **params: Any) -> list[Sequence]:
    """Long outputs of every way, every other one held to a grammar and streamed."""
    rnd = random.Random(1)
    sequences = []
    for number in range(NUM):
        prompt = [rnd.randrange(1, VOCAB_SIZE) for _ in range(rnd.choice([2, 9, 20]))]
        way = {"max_tokens": 36, "streams": bool(number % 2), **WAYS[number % len(WAYS)], **params}
        if number % 2:
            way["constraint"] = Constraint("regex", ("",))
        sequences.append(answers.sequence(first + number, prompt, **way))
        if number % 2:
            sequences[-1].grammar = EveryThird()
    return sequences


def completions(answers: Answers, first: int = 0) -> list[Completion]:
    return [answers.completion(number) for number in range(first, first + NUM)]


def all_pages_are_back(engine: InFlightEngine) -> bool:
    return eventually(
        lambda: (
            not engine.thread.num_unfinished
            and not engine.has_work()
            and engine.gauges["kv_pages_used"] == 0
        )
    )


def test_outputs_are_those_of_each_alone() -> None:
    answers = Answers()
    with running(InFlightEngine(setup(tiny_model("llama"), **OPTIONS))) as engine:
        assert isinstance(engine, InFlightEngine)
        for number, alone in enumerate(load(answers)):
            engine.submit([alone])
            answers.completion(number)
        assert engine.metrics.num_preemptions == 0
        engine.submit(load(answers, NUM))
        assert completions(answers, NUM) == completions(answers)
        assert engine.metrics.num_preemptions > 3
        assert all_pages_are_back(engine)
        # A prompt that is computed again is not counted again.
        prompts = [one.num_input_tokens for one in completions(answers)]
        assert engine.metrics.num_prompt_tokens == 2 * sum(prompts)
        assert sum(engine.metrics.queue_time_s.counts) == 2 * NUM
        counted = {one.name: one.samples[0].value for one in engine.families()}
        assert counted["hf_triton_preemptions_total"] == engine.metrics.num_preemptions


def test_pages_come_back_from_whoever_is_cancelled_or_out_of_time() -> None:
    answers, rnd = Answers(), random.Random(2)
    with running(InFlightEngine(setup(tiny_model("llama"), **OPTIONS))) as engine:
        assert isinstance(engine, InFlightEngine)
        sequences = load(answers)
        for one in sequences[::3]:
            one.deadline_s, one.fails_on_timeout = time.monotonic() + rnd.random() / 4, True
        engine.submit(sequences)
        while len(answers.results) < NUM:
            engine.cancel([rnd.choice(sequences)])
            time.sleep(0.01)
        assert all_pages_are_back(engine)
        ends = {type(result) for result in answers.wait(NUM).values()}
        assert CancelledError in ends
        assert ends <= {CancelledError, DeadlineError, Completion}


def test_a_failing_step_gives_all_pages_back() -> None:
    answers = Answers()
    with running(InFlightEngine(setup(tiny_model("llama"), **OPTIONS))) as engine:
        assert isinstance(engine, InFlightEngine)
        forward = engine.runner.forward

        def failing(step: Step) -> torch.Tensor:
            if engine.metrics.num_preemptions == 2:
                engine.metrics.num_preemptions = 0
                raise RuntimeError("boom")
            return forward(step)

        engine.runner.forward = failing  # type: ignore[method-assign]
        engine.submit(load(answers))
        results = dict(answers.wait(NUM))
        assert any(isinstance(result, EngineError) for result in results.values())
        engine.runner.forward = forward  # type: ignore[method-assign]
        assert all_pages_are_back(engine)
        engine.submit(load(answers, NUM))
        after = completions(answers, NUM)
        for number, result in results.items():
            assert isinstance(result, EngineError) or result == after[number]

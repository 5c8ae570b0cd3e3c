"""Drafted tokens change nothing of what is generated, right or wrong, whatever else is computed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.engine.step_times import StepTimes
from hf_triton.text_generation.engines.in_flight import in_flight_engine as in_flight
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.forward.paged.graphs import GraphedRunner
from hf_triton.text_generation.sampling import drafter
from hf_triton.text_generation.sampling.drafter import Drafter
from hf_triton.text_generation.sequence.sequence import Sequence
from tests.model.engine.runners.test_cuda_graphs import Captures
from tests.support.driving import Answers, Completion, running, setup
from tests.support.tiny_adapters import read, save_adapter
from tests.support.tiny_models import VOCAB_SIZE, tiny_model
from tests.support.triton import eventually

EOS = 7
NUM_REQUESTS = 24
OPTIONS: dict[str, Any] = {"max_num_seqs": 5, "max_num_batched_tokens": 24, "max_model_len": 96}
# Seven pages for five sequences of up to six: some have to be preempted.
LITTLE_ROOM = {**OPTIONS, "kv_cache_gib": 8 * 16 * 2 * 2 * 2 * 8 * 4 / 2**30}
NGRAMS: dict[str, Any] = {"speculative_method": "ngram"}
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5, "seed": 3},
    {"temperature": 1.0, "top_k": 9, "top_p": 0.8, "seed": 4, "num_logprobs": 2},
    {"num_logprobs": 3},
    {"stop_words": (" 1", " 22"), "temperature": 1.0, "seed": 6},
    {"stop_token_ids": tuple(range(0, VOCAB_SIZE, 9)), "temperature": 2.0, "seed": 7},
    {"repetition_penalty": 1.3},  # nothing of it is drafted
]


class Knowing(Drafter):
    """Proposes what each sequence will say, with a wrong token now and then."""

    def __init__(self, outputs: list[tuple[int, ...]]) -> None:
        super().__init__(StepTimes(), 5, 32)
        self.outputs, self.numbers = outputs, dict[Sequence, int]()
        self._random = random.Random(0)

    def rate(self, sequence: Sequence) -> float:
        return 0.9 if sequence in self.numbers else 0.0

    def propose(self, sequence: Sequence, num_tokens: int) -> list[int]:
        first = len(sequence.token_ids)
        right = self.outputs[self.numbers[sequence]][first : first + num_tokens]
        return [one if self._random.random() < 0.8 else (one + 1) % VOCAB_SIZE for one in right]


def _with_graphs(runner: Any, _: torch.device) -> GraphedRunner:
    """In which steps without drafts fit."""
    graphed = GraphedRunner(runner, Captures())
    graphed.capture_all()
    return graphed


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts seem to cost nothing."""
    monkeypatch.setattr(StepTimes, "cost_of_token", lambda *_: 0.0)
    monkeypatch.setattr(drafter, "best_length", lambda cost, rate, most: most if rate else 0)


def load(answers: Answers) -> list[Sequence]:
    """Prompts of several lengths, some of which begin alike; the first three run together, and
    have no room for that in LITTLE_ROOM.
    """
    rnd, sequences = random.Random(1), []
    common = [rnd.randrange(1, VOCAB_SIZE) for _ in range(20)]
    for number in range(NUM_REQUESTS):
        prompt = [rnd.randrange(1, VOCAB_SIZE) for _ in range(rnd.choice([1, 5, 17, 26]))]
        prompt = common + prompt[:6] if number % 3 == 0 else prompt
        way = {"max_tokens": rnd.choice([1, 2, 40, 60]), **WAYS[number % len(WAYS)]}
        if number < 3:
            way |= {"max_tokens": 60, "ignore_eos": True}
        sequences.append(answers.sequence(number, prompt, streams=rnd.random() < 0.5, **way))
    return sequences


def answers_of(engine: Engine, knowing: Knowing | None = None) -> list[Completion]:
    """The answers to ``load``, with as many more requests that are cancelled."""
    answers = Answers()
    asked = load(answers)
    gone = [
        answers.sequence(-1 - n, one.prompt_token_ids, max_tokens=60) for n, one in enumerate(asked)
    ]
    if knowing is not None:
        knowing.numbers = {one: number for pair in (asked, gone) for number, one in enumerate(pair)}
    with running(engine):
        engine.submit([one for pair in zip(asked, gone, strict=True) for one in pair])
        for number, one in enumerate(gone):
            answers.wait(number)
            engine.cancel([one])
        found = [answers.completion(number) for number in range(NUM_REQUESTS)]
        assert eventually(lambda: not engine.has_work() and not engine.gauges["kv_tokens_used"])
    return found


@pytest.fixture(scope="module")
def expected() -> list[Completion]:
    return answers_of(InFlightEngine(setup(tiny_model("llama"), eos=[EOS], **OPTIONS)))


IN_PAGES: dict[str, Any] = {"compiled": False}


@pytest.mark.parametrize(
    "runner, way, options",
    [
        ("fused", {}, OPTIONS),
        ("packed", {}, OPTIONS),
        ("packed", IN_PAGES, OPTIONS),
        ("packed", IN_PAGES, LITTLE_ROOM),
        ("packed, CUDA graphs", IN_PAGES, OPTIONS),
    ],
)
@pytest.mark.usefixtures("eager")
def test_drafts_change_no_answer(
    expected: list[Completion],
    runner: str,
    way: dict[str, Any],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if runner == "packed":
        request.getfixturevalue("not_fused")
    if runner.endswith("graphs"):
        monkeypatch.setattr(in_flight, "with_cuda_graphs", _with_graphs)
    knowing = Knowing([one.token_ids for one in expected])
    monkeypatch.setattr(in_flight, "Drafter", lambda *_: knowing)
    made = replace(setup(tiny_model("llama"), eos=[EOS], **options, **NGRAMS), **way)
    engine = InFlightEngine(made)
    assert answers_of(engine, knowing) == expected
    assert engine.runner.name == runner
    metrics = engine.metrics
    assert metrics.num_draft_tokens > metrics.num_accepted_tokens > 20
    assert metrics.num_generated_tokens >= sum(len(one.token_ids) for one in expected)
    if options is LITTLE_ROOM:
        assert metrics.num_preemptions > 0


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.usefixtures("eager", "not_fused")
def test_drafts_are_computed_with_their_sequences_adapters(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_adapter(tiny_model("llama"), tmp_path, r=4, target_modules=["q_proj", "lm_head"])
    found: list[list[tuple[int, ...]]] = []
    for drafts in (False, True):
        model, answers = tiny_model("llama"), Answers()
        made = replace(
            setup(model, **OPTIONS, **(NGRAMS if drafts else {})),
            adapters=read(model, {"own": folder}),
            compiled=compiled,
        )
        sequences = [answers.sequence(n, [5, 6, n], max_tokens=20) for n in range(6)]
        for sequence in sequences[::2]:
            sequence.lora_name = "own"
        if drafts:
            knowing = Knowing(found[0])
            knowing.numbers = {sequence: number for number, sequence in enumerate(sequences)}
            monkeypatch.setattr(in_flight, "Drafter", lambda *_, found=knowing: found)
        with running(InFlightEngine(made)) as engine:
            engine.submit(sequences)
            found.append([answers.completion(number).token_ids for number in range(6)])
    assert found[0] == found[1]
    assert engine.metrics.num_accepted_tokens > 20


def repeating(engine: Engine, **params: Any) -> Completion:
    """The output of a model that mostly repeats itself."""
    answers = Answers()
    with running(engine):
        engine.submit([answers.sequence(0, [3, 4, 5, 3, 4], max_tokens=40, **params)])
        return answers.completion(0)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("params", [{}, {"temperature": 0.5, "seed": 1, "streams": True}])
def test_what_was_said_before_is_drafted(params: dict[str, Any]) -> None:
    made = setup(tiny_model("llama"))
    for layer in made.model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    made.model.lm_head.weight = made.model.model.embed_tokens.weight  # says the same again
    expected = repeating(InFlightEngine(made), **params)
    engine = InFlightEngine(replace(made, options=replace(made.options, **NGRAMS)))
    assert repeating(engine, **params) == expected
    counted = {one.name: one.samples[0].value for one in engine.families()}
    assert counted["hf_triton_generated_tokens_total"] == 40
    assert counted["hf_triton_draft_tokens_total"] >= 15
    assert counted["hf_triton_accepted_tokens_total"] >= 15
    assert "speculates by ngram up to 8 tokens" in engine.description


def test_a_model_that_keeps_states_drafts_nothing(log_lines: list[str]) -> None:
    engine = InFlightEngine(setup(tiny_model("mamba2"), **NGRAMS))
    assert repeating(engine).finish_reason == "length"
    assert any("no drafts: the packed, states runner" in line for line in log_lines)

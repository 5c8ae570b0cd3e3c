"""The log-probabilities of prompts' tokens are those of the model's own forward, on every runner,
whatever else is computed, and asking for them changes no token.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from hf_triton.runtime.errors import RequestError
from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.engine.step_times import StepTimes
from hf_triton.text_generation.engines.generate.generate_engine import GenerateEngine
from hf_triton.text_generation.engines.in_flight import in_flight_engine, plan
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.engines.in_flight.runner_selection import CACHE, WHOLE_PROMPTS
from hf_triton.text_generation.sequence.sequence import Sequence
from tests.support.driving import Answers, running, setup
from tests.support.tiny_models import (
    T5,
    VOCAB_SIZE,
    Asked,
    random_encoder_decoder,
    reference,
    tiny_model,
)

CHUNKED: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 12}
MOST_SCORED = 7  # tokens of a step
NUM_TOP = 3
MODELS: dict[str, tuple[str, Any]] = {
    "llama": ("fused", lambda: tiny_model("llama")),
    "gemma2": ("fused", lambda: tiny_model("gemma2", final_logit_softcapping=2.0)),
    "gptj": ("fused", lambda: tiny_model("gptj")),  # a parallel layer
    "deepseek": ("cache", lambda: tiny_model("deepseek")),
    "bloom": ("cache", lambda: tiny_model("bloom")),
    "falcon-h1": ("packed, states", lambda: tiny_model("falcon-h1")),
}


def asked() -> list[Asked]:
    """Prompts of 1 to 60 tokens, some of which begin alike."""
    rnd = random.Random(5)
    common = [rnd.randrange(1, VOCAB_SIZE) for _ in range(40)]
    lengths = (3, 20, 1, 9, 14, 33, 2, 5)
    own = [[rnd.randrange(1, VOCAB_SIZE) for _ in range(length)] for length in lengths]
    prompts = [common + one if index % 4 == 1 else one for index, one in enumerate(own)]
    return [Asked(one, 1 + index % 5) for index, one in enumerate(prompts)]


@torch.inference_mode()
def expected_of(model: Any, token_ids: list[int]) -> torch.Tensor:
    """(tokens - 1, vocab): what the model itself says of each token before it comes."""
    logits: torch.Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1)


def check(sequence: Sequence, expected: torch.Tensor) -> None:
    """A sequence has its prompt's log-probabilities, ranks and likeliest tokens."""
    token_ids, found = sequence.prompt_token_ids[1:], sequence.prompt_logprobs
    assert len(found) == len(expected)
    for token_id, one, row in zip(token_ids, found, expected, strict=True):
        assert one.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
        assert (
            0 <= one.rank - 1 - int((row > row[token_id] + 1e-4).sum()) <= _num_near(row, token_id)
        )
        likeliest = [int(other) for other in row.topk(NUM_TOP).indices if other != token_id]
        assert [other for other, _, _ in one.alternatives] == likeliest
        for other, logprob, _ in one.alternatives:
            assert logprob == pytest.approx(float(row[other]), abs=1e-4)


def _num_near(row: torch.Tensor, token_id: int) -> int:
    """Counts tokens that are as likely, but for rounding."""
    return int(((row - row[token_id]).abs() <= 1e-4).sum()) - 1


def check_engine(engine: Engine, model: Any) -> None:
    """Half of the requests ask, some of them for nothing else; then all, with known prefixes."""
    load = asked()
    tokens = reference(model, load)
    expected = [expected_of(model, one.prompt) for one in load]
    with running(engine):
        for first in (0, len(load)):
            answers, sequences = Answers(), []
            for number, one in enumerate(load):
                asks = number % 2 or first
                num = NUM_TOP if asks else None
                most = 0 if number % 3 == 1 and asks else one.max_tokens
                sequences.append(
                    answers.sequence(number, one.prompt, max_tokens=most, num_prompt_logprobs=num)
                )
            engine.submit(sequences)
            answers.wait(len(load))
            for number, sequence in enumerate(sequences):
                most = sequence.params.max_tokens
                completion = answers.completion(number)
                assert completion.token_ids == tokens[number][:most]
                assert completion.finish_reason == "length"
                if sequence.params.num_prompt_logprobs is not None:
                    check(sequence, expected[number])
        assert engine.thread.num_unfinished == 0


@pytest.fixture
def few_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_engine, "MOST_LOGITS", MOST_SCORED * VOCAB_SIZE)


def most_rows(engine: InFlightEngine) -> list[int]:
    """A list that gets each later step's number of rows of its prompts' logits."""
    found: list[int] = []
    forward = engine.runner.forward

    def counting(step: Step) -> torch.Tensor:
        found.append(len(step.all_rows) - len(step.rows))
        return forward(step)

    engine.runner.forward = counting  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.usefixtures("few_scored")
def test_they_are_the_models_own_on_every_runner(name: str) -> None:
    runner, make = MODELS[name]
    engine = InFlightEngine(setup(make(), **CHUNKED))
    check_engine(engine, make())
    assert engine.runner.name.startswith(runner)


@pytest.mark.parametrize("name", ["llama", "mamba", "qwen3-next"])
@pytest.mark.usefixtures("few_scored", "not_fused")
def test_they_are_on_the_runners_beside_the_compiled_ones(name: str) -> None:
    check_engine(InFlightEngine(setup(tiny_model(name), **CHUNKED)), tiny_model(name))


@pytest.mark.usefixtures("few_scored")
def test_they_are_where_the_models_own_attention_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "select_runner", lambda *_, **__: CACHE)
    engine = InFlightEngine(setup(tiny_model("llama"), **CHUNKED))
    check_engine(engine, tiny_model("llama"))
    assert engine.runner.name == CACHE.name


@pytest.mark.parametrize("storage_kind", ["pages", "few pages"], indirect=True)
@pytest.mark.usefixtures("few_scored", "storage_kind")
def test_they_are_over_pages_and_after_preemptions() -> None:
    engine = InFlightEngine(setup(tiny_model("llama"), **CHUNKED, max_model_len=80))
    check_engine(engine, tiny_model("llama"))


@pytest.mark.usefixtures("few_scored")
def test_a_step_has_rows_for_few_of_a_prompts_tokens() -> None:
    engine = InFlightEngine(setup(tiny_model("llama"), **CHUNKED))
    with running(engine):
        rows, answers = most_rows(engine), Answers()
        first = asked()[5].prompt
        for number, prompt in enumerate((first, first[::-1])):
            engine.submit([answers.sequence(number, prompt, max_tokens=1, num_prompt_logprobs=0)])
        answers.wait(2)
    assert max(rows) <= MOST_SCORED < len(first)
    assert sum(rows) == 2 * (len(first) - 1)


@pytest.mark.usefixtures("few_scored")
def test_drafts_beside_them_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepTimes, "cost_of_token", lambda *_: 0.0)
    options = {**CHUNKED, "speculative_method": "ngram"}
    check_engine(InFlightEngine(setup(tiny_model("llama"), **options)), tiny_model("llama"))


def test_a_shared_beginning_is_computed_for_those_that_ask() -> None:
    engine = InFlightEngine(setup(tiny_model("llama"), **CHUNKED))
    prompt = asked()[1].prompt
    with running(engine):
        for number, num in enumerate((None, 0, None, 1)):
            answers = Answers()
            sequence = answers.sequence(number, prompt, max_tokens=1, num_prompt_logprobs=num)
            engine.submit([sequence])
            answers.completion(number)
            assert (sequence.num_reused_tokens > 0) == (number == 2)


def test_a_prompt_that_is_computed_in_one_piece_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = r"^prompt_logprobs: not available: this model computes such a prompt in one piece$"
    reads = GenerateEngine(setup(random_encoder_decoder("t5", **T5), eos=[1]))
    with pytest.raises(RequestError, match=refusal):
        reads.check_prompt_logprobs(with_source=True)
    with running(InFlightEngine(setup(tiny_model("llama")))) as engine:
        engine.check_prompt_logprobs(with_source=False)
    monkeypatch.setattr(plan, "select_runner", lambda *_, **__: WHOLE_PROMPTS)
    whole = InFlightEngine(setup(tiny_model("llama")))
    with running(whole), pytest.raises(RequestError, match=refusal):
        whole.check_prompt_logprobs(with_source=False)

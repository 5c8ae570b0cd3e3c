"""Beams on the generate engine: which sequences share a batch, and who may leave it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.engines.generate.generate_engine import GenerateEngine
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.sequence.sequence import DecoderStart
from tests.model.engine.engines.test_generate_engine import batch_sizes
from tests.support.driving import Answers, Completion, running, setup
from tests.support.tiny_models import BART, T5, own_tokens, random_encoder_decoder

EOS = 1
PROMPTS = ([5, 6, 7], [9] * 12, [3, 8, 4, 4, 20, 31], [40])


@pytest.fixture(scope="module", params=["t5", "bart"])
def model(request: pytest.FixtureRequest) -> Any:
    return random_encoder_decoder(request.param, **(T5 if request.param == "t5" else BART))


def asking(answers: Answers, number: int, prompt: list[int], **params: Any) -> Any:
    return answers.sequence(number, prompt, **{"start": DecoderStart(2), **params})


def test_a_padded_batch_has_the_beams_of_each_prompt_alone(model: Any) -> None:
    expected = [own_tokens(model, p, 9, num_beams=3) for p in PROMPTS]
    answers = Answers()
    engine = GenerateEngine(setup(model, eos=[EOS], max_num_seqs=16))
    with running(engine):
        engine.submit(
            [asking(answers, n, p, max_tokens=9, num_beams=3) for n, p in enumerate(PROMPTS)]
        )
        found = [answers.completion(number) for number in range(len(PROMPTS))]
    assert [completion.token_ids for completion in found] == expected
    ended = [tokens[-1] == EOS for tokens in expected]
    reasons = [completion.finish_reason == "stop" for completion in found]
    if model.generation_config.forced_eos_token_id is None:
        assert reasons == ended


def test_beams_share_a_batch_with_their_like_alone(model: Any) -> None:
    engine = GenerateEngine(setup(model, eos=[EOS], max_num_seqs=8))
    sizes = batch_sizes(engine)
    answers = Answers()
    with running(engine):
        engine.submit(
            [
                *[asking(answers, n, [5, 6], max_tokens=4, num_beams=2) for n in range(5)],
                asking(answers, 5, [5, 6], max_tokens=5, num_beams=2),
                asking(answers, 6, [5, 6], max_tokens=4),
            ]
        )
        answers.wait(7)
    assert sizes == [4, 1, 1, 1]  # 8 sequences at once are 4 of 2 beams


def test_one_that_runs_out_of_time_leaves_and_the_others_are_answered(model: Any) -> None:
    expected = own_tokens(model, [5, 6, 7], 12, num_beams=2)
    engine = GenerateEngine(setup(model, eos=[EOS], max_num_seqs=8))
    steps = [0]
    forward = model.forward

    def slow(*args: Any, **inputs: Any) -> Any:
        steps[0] += 1
        time.sleep(0.01)
        return forward(*args, **inputs)

    answers = Answers()
    with running(engine), pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", slow)
        soon = time.monotonic() + 0.05
        engine.submit(
            [
                asking(answers, 0, [5, 6, 7], max_tokens=12, num_beams=2),
                asking(answers, 1, [5, 6, 7], max_tokens=12, num_beams=2, deadline_s=soon),
            ]
        )
        results = answers.wait(2)
    whole, late = results[0], results[1]
    assert isinstance(whole, Completion)
    assert isinstance(late, Completion)
    assert whole.token_ids == expected
    assert (late.finish_reason, late.token_ids) == ("timeout", ())


@pytest.mark.parametrize(
    "kind, num_beams", [(InFlightEngine, 1), (GenerateEngine, 1), (GenerateEngine, 3)]
)
def test_each_row_has_its_own_start_and_first_token(
    kind: type[Engine], num_beams: int, model: Any
) -> None:
    starts = [DecoderStart(2, 17), DecoderStart(9), DecoderStart(2)]
    expected = [
        own_tokens(
            model,
            [5, 6, 7],
            7,
            num_beams=num_beams,
            decoder_start_token_id=start.token_id,
            forced_bos_token_id=start.forced_token_id,
        )
        for start in starts
    ]
    answers = Answers()
    with running(kind(setup(model, eos=[EOS], max_num_seqs=9))) as engine:
        asked: dict[str, Any] = {"max_tokens": 7, "num_beams": num_beams}
        engine.submit([asking(answers, n, [5, 6, 7], start=starts[n], **asked) for n in range(3)])
        assert [answers.completion(n).token_ids for n in range(3)] == expected


def test_a_forced_tokens_log_probability_is_its_own() -> None:
    model = random_encoder_decoder("t5", **T5)
    answers = Answers()
    with running(GenerateEngine(setup(model, eos=[EOS]))) as engine:
        start = DecoderStart(2, 17)
        row = asking(answers, 0, [5, 6, 7], max_tokens=3, num_logprobs=2, start=start)
        engine.submit([row])
        answers.completion(0)
    first, second, *_ = (one for update in row.recipient.updates for one in update.logprobs)
    assert (row.token_ids[0], first.logprob, first.rank) == (17, 0.0, 1)
    assert second.logprob < 0

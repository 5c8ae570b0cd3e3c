"""The generate engine: padded batches give ``model.generate``'s greedy tokens, and the options mean
what they mean in flight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.text_generation.engines.generate import generate_engine
from hf_triton.text_generation.engines.generate.generate_engine import GenerateEngine
from hf_triton.text_generation.sequence.sequence import DecoderStart
from tests.support.driving import Answers, generate_all, running, setup
from tests.support.tiny_models import (
    BART,
    GPT_NEO,
    LLAMA4,
    MINIMAX_M3,
    T5,
    Asked,
    mixed_load,
    random_encoder_decoder,
    random_model,
    reference,
    tiny_model,
)

EOS = 1


@pytest.fixture(scope="module", params=["t5", "bart"])
def encoder_decoder(request: pytest.FixtureRequest) -> Any:
    return random_encoder_decoder(request.param, **(T5 if request.param == "t5" else BART))


def batch_sizes(engine: GenerateEngine) -> list[int]:
    sizes: list[int] = []
    generate = engine.generate_batch

    def counting(batch: list[Any]) -> None:
        sizes.append(len(batch))
        generate(batch)

    engine.generate_batch = counting  # type: ignore[method-assign]
    return sizes


def test_encoder_decoders_give_generates_tokens_in_padded_batches(encoder_decoder: Any) -> None:
    asked = mixed_load(12)
    # generate also returns the start token.
    expected = [tokens[1:] for tokens in reference(encoder_decoder, asked)]
    assert len({token for row in expected for token in row}) > 6
    engine = GenerateEngine(setup(encoder_decoder, eos=[EOS], max_num_seqs=8))
    sizes = batch_sizes(engine)
    with running(engine):
        assert "padded batches" in engine.description
        assert generate_all(engine, asked, at_first=12) == expected
    assert max(sizes) == 8


def test_tokens_are_timed_and_are_the_same_with_one_thread_and_with_two(
    encoder_decoder: Any, changing_threads: list[int]
) -> None:
    asked = mixed_load(4)
    expected = [tokens[1:] for tokens in reference(encoder_decoder, asked)]
    options = setup(encoder_decoder, eos=[EOS], max_num_seqs=4)
    engine = GenerateEngine(replace(options, num_threads=2))
    with running(engine):
        assert generate_all(engine, asked, at_first=4) == expected
    assert len(changing_threads) == max(map(len, expected)) - 1, "each token but the first"
    assert set(changing_threads) == {4}


def test_rows_never_run_past_the_context_together() -> None:
    """Each fits 64 tokens; padded to 50 and run on for 50 more they would not."""
    model = random_model("gpt_neo", **{**GPT_NEO, "max_position_embeddings": 64})
    asked = [Asked(list(range(2, 2 + n)), m) for n, m in ((50, 10), (3, 50), (7, 7))]
    expected = reference(model, asked)
    engine = GenerateEngine(setup(model, max_num_seqs=8))
    sizes = batch_sizes(engine)
    with running(engine):
        assert generate_all(engine, asked, at_first=3) == expected
    assert sizes == [3, 1], "the second goes on where the first alone filled the context"


@pytest.mark.threat("unlimited-answers")
def test_a_long_answer_gives_way_to_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_engine, "TURN", 4)
    model = tiny_model("gpt2")
    asked = [Asked([5, 6, 7], 60), Asked([8, 9], 3)]
    answers = Answers()
    engine = GenerateEngine(setup(model, max_num_seqs=1))
    sizes = batch_sizes(engine)
    with running(engine):
        engine.submit(answers.of(asked))
        answers.wait(2)
    assert list(answers.results) == [1, 0]
    assert [answers.completion(n).token_ids for n in range(2)] == reference(model, asked)
    assert sizes == [1, 1, 1], "four tokens, the other answer, the rest"


def blind(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a model attend to padding."""
    forward = model.forward

    def without_mask(**inputs: Any) -> Any:
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
        return forward(**inputs)

    monkeypatch.setattr(model, "forward", without_mask)


def swayed(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the rows of a batch depend on each other."""
    forward = model.forward

    def mixed(**inputs: Any) -> Any:
        output = forward(**inputs)
        output.logits = output.logits - output.logits.mean(0, keepdim=True) / 2
        return output

    monkeypatch.setattr(model, "forward", mixed)


@pytest.mark.parametrize(
    "change, batches, sizes",
    [
        (blind, "batches of equal prompt lengths", [3, 2]),
        (swayed, "batches of one prompt", [1] * 5),
    ],
)
def test_rows_that_change_in_a_batch_get_smaller_ones(
    change: Any, batches: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("gpt2")
    change(model, monkeypatch)
    asked = [Asked([5] * n, 3) for n in (4, 2, 4, 2, 4)]
    expected = reference(model, asked)
    engine = GenerateEngine(setup(model, max_num_seqs=8))
    found = batch_sizes(engine)
    with running(engine):
        assert f"generate engine, {batches} of 8 sequences" in engine.description
        assert generate_all(engine, asked, at_first=5) == expected
    assert found == sizes


@pytest.mark.parametrize(
    "model_type, config",
    [
        ("minimax_m3_vl_text", MINIMAX_M3),
        ("llama4_text", {**LLAMA4, "floor_scale": 16, "attn_temperature_tuning": True}),
    ],
)
def test_what_padding_changes_after_many_tokens_is_noticed_at_load(
    model_type: str, config: dict[str, Any], log_lines: list[str]
) -> None:
    """The first counts blocks of 128 tokens from the first pad, the second positions from 16 on."""
    engine = GenerateEngine(setup(random_model(model_type, **config), max_num_seqs=8))
    with running(engine):
        assert "batches of equal prompt lengths" in engine.description
    (line,) = log_lines
    why = "not padded batches: logits differ by "
    assert line.startswith(f"I generates in batches of equal prompt lengths; {why}")


def test_answers_that_cannot_be_reproduced_are_said_at_load(
    monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    model = tiny_model("gpt2")
    forward = model.forward

    def random(**inputs: Any) -> Any:
        output = forward(**inputs)
        output.logits = output.logits + torch.randn_like(output.logits)
        return output

    monkeypatch.setattr(model, "forward", random)
    with running(GenerateEngine(setup(model, max_num_seqs=8))) as engine:
        assert "batches of one prompt" in engine.description
    why = "the model's answers differ from run to run: none can be compared"
    assert log_lines == [f"W {why}"]


def test_an_encoder_decoders_prompt_and_output_each_have_the_context() -> None:
    engine = GenerateEngine(setup(random_encoder_decoder("bart", **BART)))
    engine.check_length(64, 64)
    with pytest.raises(RequestError) as raised:
        engine.check_length(65, 1)
    assert str(raised.value) == "text_input: got 65 tokens, allowed: at most 64"
    with pytest.raises(RequestError) as raised:
        engine.check_length(1, 65)
    assert str(raised.value) == "max_tokens: got 65 tokens, allowed: at most 64"
    assert engine.output_length(64, None, clamps=True) == 64


def test_a_model_that_does_not_run_fails_its_load() -> None:
    model = tiny_model("gpt2")
    model.forward = None
    with pytest.raises(LoadError, match=r"^the model does not run: TypeError: "):
        GenerateEngine(setup(model)).start()


def test_a_batch_whose_rows_all_ignore_the_end_goes_on(encoder_decoder: Any) -> None:
    first = reference(encoder_decoder, [Asked([5, 6, 7, 8], 10)])[0][1]
    engine = GenerateEngine(setup(encoder_decoder, eos=[first], max_num_seqs=2))
    answers = Answers()
    ignoring = {"max_tokens": 10, "ignore_eos": True, "start": DecoderStart(2)}
    with running(engine):
        engine.submit([answers.sequence(n, [5, 6, 7, 8], **ignoring) for n in range(2)])
        assert [len(answers.completion(n).token_ids) for n in range(2)] == [10, 10]
        assert first in answers.completion(0).token_ids

"""Scores that are no numbers end their own request with an error. Nothing of it is read by another,
whatever runner holds the model, in whatever room: neither after it nor beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_triton.runtime.errors import NO_NUMBERS, EngineError, LoadError
from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.engine.generation_rules import decoder_start
from hf_triton.text_generation.engine.step import Draft, Step
from hf_triton.text_generation.engines.generate.generate_engine import GenerateEngine
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.sampling.drafter import Drafter
from hf_triton.text_generation.sequence.sequence import Sequence
from tests.support.driving import Answers, Completion, running, setup
from tests.support.tiny_adapters import read, save_adapter
from tests.support.tiny_models import (
    BART,
    T5,
    VOCAB_SIZE,
    Asked,
    mixed_load,
    random_encoder_decoder,
    reference,
    tiny_model,
)

_ALIKE = list(range(1, 42))  # what prompts begin like
_ENCODER_DECODERS: dict[str, dict[str, Any]] = {"bart": BART, "t5": T5}
COMPILED = {"llama": "fused", "falcon-h1": "packed, states"}
NOT_FUSED = {
    "llama": "packed",
    "gemma2": "packed",
    "deepseek": "cache",
    "qwen3-next": "packed, states",
    "mamba": "packed, states",
}


def asked_for() -> list[Asked]:
    """Short ones and long ones; two that begin like the poisoned one."""
    alike = [Asked([*_ALIKE, 50 + number], 9) for number in range(2)]
    return [*mixed_load(6), *alike]


def poisoned(model: Any, asked: Items[Asked], expected: Items[tuple[int, ...]]) -> int:
    """A token that nobody sends or is sent, whose embedding is NaN from now on."""
    used = {token for one in asked for token in one.prompt}.union(*expected)
    token = next(token for token in range(43, VOCAB_SIZE) if token not in used)
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head.weight is embeddings.weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    with torch.no_grad():
        embeddings.weight[token] = torch.nan
    return token


def answered(
    engine: Engine, asked: Items[Asked], poison: list[Asked], **params: Any
) -> tuple[list[tuple[int, ...] | None], list[Completion | Exception]]:
    """The outputs of each, and of each poisoned one; None for an error."""
    answers = Answers()
    start = decoder_start(engine.setup.model)
    everyone = [*poison, *asked]
    for one in answers.of(everyone, start=start, **params):
        engine.submit([one])
    told = answers.wait(len(everyone))
    results = [told[number] for number in range(len(everyone))]
    tokens = [
        one.token_ids if isinstance(one, Completion) else None for one in results[len(poison) :]
    ]
    return tokens, results[: len(poison)]


def check(engine: Engine, token: int, asked: list[Asked], expected: list[tuple[int, ...]]) -> None:
    """Poison before others and beside them, alone and behind what others begin with."""
    ways = ([token, 5, 6], [*_ALIKE, token, 7, 8], [*_ALIKE, *([3] * 15), token])
    poison = [Asked(prompt, 9) for prompt in ways]
    for prompts in ([], poison, poison[::-1], []):
        tokens, failed = answered(engine, asked, prompts)
        assert tokens == expected
        assert [str(error) for error in failed] == [NO_NUMBERS] * len(prompts)
        assert all(isinstance(error, EngineError) for error in failed)
    tokens, _ = answered(engine, asked[::-1], [])
    assert tokens == expected[::-1]


def check_in_flight(name: str, runner: str) -> None:
    model = tiny_model(name)
    asked = asked_for()
    expected = reference(model, asked, min_gap=0)
    token = poisoned(model, asked, expected)
    made = setup(model, max_num_seqs=4, max_num_batched_tokens=32)
    with running(InFlightEngine(made)) as engine:
        assert isinstance(engine, InFlightEngine)
        assert engine.runner.name == runner
        check(engine, token, asked, expected)


@pytest.mark.threat("no-numbers")
@pytest.mark.parametrize("name", COMPILED)
def test_nobody_reads_by_compiled_loops_what_is_no_number(name: str) -> None:
    check_in_flight(name, COMPILED[name])


@pytest.mark.threat("no-numbers")
@pytest.mark.usefixtures("not_fused")
@pytest.mark.parametrize("name", NOT_FUSED)
def test_nobody_reads_behind_a_mask_what_is_no_number(name: str) -> None:
    check_in_flight(name, NOT_FUSED[name])


@pytest.mark.usefixtures("not_fused")
def test_a_drafted_token_that_is_no_number_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = tiny_model("llama"), mixed_load(6)
    expected = reference(model, asked, min_gap=0)
    token = poisoned(model, asked, expected)
    made = setup(model, max_num_seqs=4, speculative_method="ngram")
    engine = InFlightEngine(made)

    def draft(_: Drafter, step: Step, grow: Callable[[Sequence, int], bool]) -> None:
        for one in [] if step.prefills else step.decodes:
            num = min(2, one.num_tokens_left - 1)
            if num > 0 and not one.is_alone and grow(one, one.num_computed_tokens + num):
                step.drafts.append(Draft(one, [token] * num))

    monkeypatch.setattr(Drafter, "draft", draft)
    with running(engine):
        assert answered(engine, asked, [])[0] == expected
    assert engine.metrics.num_draft_tokens > 0


@pytest.mark.usefixtures("not_fused")
def test_nobody_reads_beside_an_adapter_what_is_no_number(tmp_path: Path) -> None:
    folder = save_adapter(tiny_model("llama"), tmp_path, r=4, target_modules=["q_proj", "v_proj"])
    model, prompts = tiny_model("llama"), [*mixed_load(4), *mixed_load(2, seed=5)]
    names = (None, "own", "own", None, None, "own")
    asked = [replace(one, lora_name=name) for one, name in zip(prompts, names, strict=True)]
    adapters = read(model, {"own": folder})
    with running(
        InFlightEngine(replace(setup(model, max_num_seqs=4), adapters=adapters))
    ) as engine:
        expected, _ = answered(engine, asked, [])
        token = poisoned(model, asked, [tokens or () for tokens in expected])
        for name in ("own", None):
            poison = [
                Asked([token, 5, 6], 9, lora_name=name),
                Asked([*range(1, 30), token], 9, lora_name="own"),
            ]
            found, failed = answered(engine, asked, poison)
            assert [str(error) for error in failed] == [NO_NUMBERS] * 2
            assert found == expected
            assert answered(engine, asked, [])[0] == expected


@pytest.mark.threat("no-numbers")
@pytest.mark.parametrize(
    "family, kind",
    [("llama", GenerateEngine), *product(_ENCODER_DECODERS, (InFlightEngine, GenerateEngine))],
)
def test_nobody_reads_of_a_prompt_or_a_source_what_is_no_number(
    family: str, kind: type[Engine]
) -> None:
    has_source = family in _ENCODER_DECODERS
    if has_source:
        model = random_encoder_decoder(family, **_ENCODER_DECODERS[family])
    else:
        model = tiny_model(family)
    asked = mixed_load(8)
    expected = [tokens[has_source:] for tokens in reference(model, asked, min_gap=0)]
    token = poisoned(model, asked, expected)
    eos = [1] if has_source else []
    with running(kind(setup(model, eos=eos, max_num_seqs=4))) as engine:
        check(engine, token, asked, expected)


@pytest.mark.threat("no-numbers")
def test_beams_are_searched_on_without_it() -> None:
    model, beams = random_encoder_decoder("t5", **T5), dict[str, Any](num_beams=2)
    asked = [Asked(one.prompt, 5) for one in mixed_load(4)]
    with running(GenerateEngine(setup(model, max_num_seqs=16))) as engine:
        expected, _ = answered(engine, asked, [], **beams)
        assert None not in expected
        token = poisoned(model, asked, [tokens or () for tokens in expected])
        found, failed = answered(engine, asked, [Asked([token, 5, 6], 5)], **beams)
    assert found == expected
    assert [str(error) for error in failed] == [NO_NUMBERS]


@pytest.mark.parametrize("kind", [InFlightEngine, GenerateEngine])
def test_a_model_that_computes_no_numbers_does_not_load(kind: type[Engine]) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.inf
    engine = kind(setup(model))
    with pytest.raises(LoadError, match=r"^the model's scores are NaN or infinite "):
        engine.start()


def test_log_probabilities_of_a_prompt_that_are_no_numbers_are_an_error() -> None:
    model, asked = tiny_model("llama"), mixed_load(4)
    expected = reference(model, asked, min_gap=0)
    token = poisoned(model, asked, expected)
    with running(InFlightEngine(setup(model, max_num_seqs=4))) as engine:
        for max_tokens in (0, 3):
            answers = Answers()
            ways = {"max_tokens": max_tokens, "num_prompt_logprobs": 1}
            engine.submit([answers.sequence(0, [5, token, 6], **ways)])
            assert str(answers.wait(1)[0]) == NO_NUMBERS
        assert answered(engine, asked, [])[0] == expected

"""The in-flight engine follows a decoder's generation_config.json as ``generate`` does, or says
at load what it does not follow.
"""

from __future__ import annotations

from typing import Any

import pytest
from transformers import GenerationConfig

from hf_triton.text_generation.engine.generation_rules import has_rules
from hf_triton.text_generation.engines.generate.generate_engine import GenerateEngine
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from tests.support.driving import Answers, setup
from tests.support.tiny_models import own_tokens, tiny_model

PROMPTS = [[5, 6, 7], [40, 41, 5, 6, 5, 6], [9]]
NUM_TOKENS = 24


def plain_tokens(**own: Any) -> list[tuple[int, ...]]:
    """By transformers' generate, prompt by prompt."""
    model = tiny_model("llama")
    model.generation_config = GenerationConfig(pad_token_id=0, **own)
    return [own_tokens(model, prompt, NUM_TOKENS) for prompt in PROMPTS]


def tokens_in_flight(**own: Any) -> list[tuple[int, ...]]:
    model = tiny_model("llama")
    model.generation_config = GenerationConfig(pad_token_id=0, **own)
    end = own.get("eos_token_id")
    engine = InFlightEngine(setup(model, eos=[] if end is None else [end], max_num_seqs=4))
    engine.start()
    try:
        answers = Answers()
        for number, prompt in enumerate(PROMPTS):
            engine.submit([answers.sequence(number, prompt, max_tokens=NUM_TOKENS)])
        done = answers.wait(len(PROMPTS))
    finally:
        engine.stop()
    return [tuple(done[number].token_ids) for number in range(len(PROMPTS))]  # type: ignore[union-attr]


_FIRST, _SECOND = plain_tokens()[0][:2]


@pytest.mark.parametrize(
    "own",
    [
        {"no_repeat_ngram_size": 1},
        {"suppress_tokens": [_FIRST, _SECOND]},
        {"begin_suppress_tokens": [_FIRST]},
        {"bad_words_ids": [[_FIRST, _SECOND]]},
        {"sequence_bias": [[[_FIRST], -20.0], [[_SECOND, 3], 50.0]]},
        {"exponential_decay_length_penalty": (4, 1.5), "eos_token_id": 11},
        {"forced_eos_token_id": 11, "eos_token_id": 11},
    ],
    ids=lambda own: next(iter(own)),
)
def test_what_the_config_asks_for_is_done_as_generate_does_it(own: dict[str, Any]) -> None:
    expected = plain_tokens(**own)
    ends = {name: own[name] for name in own.keys() & {"eos_token_id"}}
    assert expected != plain_tokens(**ends), "it changes nothing"
    assert tokens_in_flight(**own) == expected


def test_the_models_own_output_length_is_the_default() -> None:
    model = tiny_model("llama")
    model.generation_config.max_new_tokens = 7
    for clamps in (False, True):
        usual = [
            GenerateEngine(setup(model, default_max_tokens=n)).output_length(9, None, clamps=clamps)
            for n in (None, 5)
        ]
        assert usual == [7, 5]


def test_fields_that_requests_decide_are_no_rules() -> None:
    model = tiny_model("llama")
    assert not has_rules(model)
    model.generation_config = GenerationConfig(num_beams=4, temperature=0.6, do_sample=True)
    assert not has_rules(model)

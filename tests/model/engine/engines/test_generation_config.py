"""The in-flight engine follows a model's generation_config.json as ``generate`` does, or says
at load what it does not follow.
"""

from __future__ import annotations

from typing import Any

import pytest
from transformers import GenerationConfig

from hf_triton.text_generation.engine.generation_rules import has_rules
from hf_triton.text_generation.engines.generate.generate_engine import GenerateEngine
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from tests.support.driving import generate_all, running, setup
from tests.support.tiny_models import (
    BART,
    Asked,
    mixed_load,
    own_tokens,
    random_encoder_decoder,
    tiny_model,
)

# Prompts, and tokens asked of each, of a decoder and of an encoder-decoder.
ASKED = {
    "llama": ([[5, 6, 7], [40, 41, 5, 6, 5, 6], [9]], 24),
    "bart": ([one.prompt for one in mixed_load(6)], 14),
}


def made(kind: str, own: dict[str, Any]) -> Any:
    plain = {name: value for name, value in BART.items() if name != "forced_eos_token_id"}
    model = tiny_model("llama") if kind == "llama" else random_encoder_decoder("bart", **plain)
    for name, value in own.items():
        setattr(model.generation_config, name, value)
    return model


def plain_tokens(kind: str, own: dict[str, Any]) -> list[tuple[int, ...]]:
    """By transformers' generate, prompt by prompt."""
    model, (prompts, num_tokens) = made(kind, own), ASKED[kind]
    return [own_tokens(model, prompt, num_tokens) for prompt in prompts]


def tokens_in_flight(kind: str, own: dict[str, Any]) -> list[tuple[int, ...]]:
    model, (prompts, num_tokens) = made(kind, own), ASKED[kind]
    end = model.generation_config.eos_token_id
    engine = InFlightEngine(setup(model, eos=[] if end is None else [end], max_num_seqs=4))
    with running(engine):
        return generate_all(engine, [Asked(one, num_tokens) for one in prompts], len(prompts))


_FIRST, _SECOND = plain_tokens("llama", {})[0][:2]


@pytest.mark.parametrize(
    "kind, own",
    [
        ("llama", {"no_repeat_ngram_size": 1}),
        ("llama", {"suppress_tokens": [_FIRST, _SECOND]}),
        ("llama", {"begin_suppress_tokens": [_FIRST]}),
        ("llama", {"bad_words_ids": [[_FIRST, _SECOND]]}),
        ("llama", {"sequence_bias": [[[_FIRST], -20.0], [[_SECOND, 3], 50.0]]}),
        ("llama", {"exponential_decay_length_penalty": (4, 1.5), "eos_token_id": 11}),
        ("llama", {"forced_eos_token_id": 11, "eos_token_id": 11}),
        ("bart", {"no_repeat_ngram_size": 2}),
        ("bart", {"encoder_no_repeat_ngram_size": 1, "no_repeat_ngram_size": 3}),
        ("bart", {"bad_words_ids": [[54], [19, 19]], "suppress_tokens": [52]}),
        ("bart", {"begin_suppress_tokens": [17], "forced_bos_token_id": 23}),
        ("bart", {"forced_eos_token_id": 1}),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else one,
)
def test_what_the_config_asks_for_is_done_as_generate_does_it(
    kind: str, own: dict[str, Any]
) -> None:
    expected = plain_tokens(kind, own)
    ends = {name: own[name] for name in own.keys() & {"eos_token_id"}}
    assert expected != plain_tokens(kind, ends), "it changes nothing"
    assert tokens_in_flight(kind, own) == expected


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

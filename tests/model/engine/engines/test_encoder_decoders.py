"""Encoder-decoders in flight: whatever else runs, each gets ``model.generate``'s tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import GenerationMixin

from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.sequence.sequence import DecoderStart, Sequence
from hf_triton.text_generation.sequence.source import Source
from tests.support.driving import Answers, generate_all, running, setup
from tests.support.tiny_models import (
    BART,
    T5,
    Asked,
    mixed_load,
    own_tokens,
    random_encoder_decoder,
    reference,
    with_large_weights,
)

EOS = 1
START = DecoderStart(2)
_BART = {name: value for name, value in BART.items() if name != "forced_eos_token_id"}
# Positions from what the cache says, T5's bias, positions of one length at a time, a decoder that
# takes one length at a time, an encoder in blocks.
FAMILIES: dict[str, dict[str, Any]] = {
    "bart": BART,
    "t5": T5,
    "m2m_100": _BART,
    "led": {
        **_BART,
        "max_encoder_position_embeddings": 128,
        "max_decoder_position_embeddings": 64,
        "attention_window": 16,
    },
    "longt5": {**T5, "local_radius": 8},
}


def asking(answers: Answers, number: int, prompt: list[int], **params: Any) -> Sequence:
    return answers.sequence(number, prompt, **{"start": START, "max_tokens": 12, **params})


@pytest.mark.parametrize("family", FAMILIES)
def test_sequences_that_join_in_mid_flight_have_generates_tokens(family: str) -> None:
    model = random_encoder_decoder(family, **FAMILIES[family])
    asked = mixed_load(14)
    expected = [tokens[1:] for tokens in reference(model, asked, min_gap=1e-5)]
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 30}
    with running(InFlightEngine(setup(model, eos=[EOS], **options))) as engine:
        equal = ", equal lengths" if family == "led" else ""
        assert engine.description.startswith(f"in_flight engine (encoder-decoder{equal})")
        assert generate_all(engine, asked, at_first=6) == expected


@pytest.fixture(scope="module")
def bart() -> Any:
    return random_encoder_decoder("bart", **_BART)


@pytest.mark.parametrize(
    "own",
    [
        {"no_repeat_ngram_size": 2},
        {"encoder_no_repeat_ngram_size": 1, "no_repeat_ngram_size": 3},
        {"bad_words_ids": [[54], [19, 19]], "suppress_tokens": [52]},
        {"begin_suppress_tokens": [17], "forced_bos_token_id": 23, "forced_eos_token_id": EOS},
    ],
    ids=lambda own: next(iter(own)),
)
def test_what_the_generation_config_asks_of_every_output_is_done(
    own: dict[str, Any], bart: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = mixed_load(6)
    plain = [own_tokens(bart, one.prompt, 14) for one in asked]
    for name, value in own.items():
        monkeypatch.setattr(bart.generation_config, name, value)
    expected = [own_tokens(bart, one.prompt, 14) for one in asked]
    assert expected != plain
    with running(InFlightEngine(setup(bart, eos=[EOS], max_num_seqs=4))) as engine:
        found = generate_all(engine, [Asked(one.prompt, 14) for one in asked], at_first=6)
    assert found == expected


def test_each_sequence_has_its_own_start_and_first_token(bart: Any) -> None:
    starts = [DecoderStart(2, 17), DecoderStart(9), DecoderStart(2)]
    expected = [
        own_tokens(
            bart,
            [5, 6, 7],
            12,
            decoder_start_token_id=start.token_id,
            forced_bos_token_id=start.forced_token_id,
        )
        for start in starts
    ]
    answers = Answers()
    with running(InFlightEngine(setup(bart, eos=[EOS], max_num_seqs=4))) as engine:
        engine.submit([asking(answers, n, [5, 6, 7], start=s) for n, s in enumerate(starts)])
        assert [answers.completion(n).token_ids for n in range(3)] == expected


@pytest.mark.parametrize("heeds_mask", [True, False])
def test_texts_are_padded_together_only_where_it_changes_nothing(
    heeds_mask: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_encoder_decoder("bart", **_BART)
    encode, padded = model.get_encoder().forward, [False]

    def noted(input_ids: Any, attention_mask: Any = None, **inputs: Any) -> Any:
        padded.append(attention_mask is not None and not attention_mask.all())
        mask = attention_mask if heeds_mask else None
        return encode(input_ids=input_ids, attention_mask=mask, **inputs)

    monkeypatch.setattr(model.get_encoder(), "forward", noted)
    asked = [Asked([5 + n] * length, 6) for n, length in enumerate((9, 8, 7, 9, 6))]
    with running(InFlightEngine(setup(model, eos=[EOS], max_num_seqs=5))) as engine:
        padded.clear()
        found = generate_all(engine, asked, at_first=5)
    assert any(padded) is heeds_mask
    expected = [own_tokens(model, one.prompt, 6) for one in asked]
    assert found == expected


def whisper() -> Any:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes: dict[str, Any] = {
        name: value for name, value in _BART.items() if name != "max_position_embeddings"
    }
    config = WhisperConfig(
        **sizes,
        vocab_size=40,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=32,
        pad_token_id=0,
        eos_token_id=EOS,
        decoder_start_token_id=2,
    )
    model = with_large_weights(WhisperForConditionalGeneration(config))
    model.generation_config.eos_token_id = EOS
    return model


def test_sounds_are_heard_after_decoder_prompts_of_different_lengths() -> None:
    model = whisper()
    draw = torch.Generator().manual_seed(0)
    sounds = [torch.randn(1, 8, 40, generator=draw) for _ in range(5)]
    prompts = [[2, 5, 6], [2], [2, 7, 8], [2, 9], [2]]
    expected = []
    for prompt, sound in zip(prompts, sounds, strict=True):
        with torch.inference_mode():
            output = GenerationMixin.generate(
                model,
                sound,
                decoder_input_ids=torch.tensor([prompt]),
                max_new_tokens=9,
                do_sample=False,
                num_beams=1,
            )
        expected.append(tuple(output[0, len(prompt) :].tolist()))
    sources = [Source({"input_features": sound}, 20) for sound in sounds]
    made = replace(setup(model, eos=[EOS], max_num_seqs=3), sources=tuple(sources[:2]))
    answers = Answers()
    with running(InFlightEngine(made)) as engine:
        assert "sequences of 32" in engine.description
        for number, (prompt, source) in enumerate(zip(prompts, sources, strict=True)):
            sequence = answers.sequence(number, prompt, max_tokens=9)
            sequence.source, sequence.continues_prompt = source, False
            engine.submit([sequence])
        assert [answers.completion(n).token_ids for n in range(5)] == expected

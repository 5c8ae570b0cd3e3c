"""Encoder-decoders in flight: whatever else runs, each gets ``model.generate``'s tokens."""

from __future__ import annotations

from typing import Any

import pytest

from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from tests.support.driving import generate_all, running, setup
from tests.support.tiny_models import (
    BART,
    T5,
    Asked,
    mixed_load,
    own_tokens,
    random_encoder_decoder,
    reference,
)

EOS = 1
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

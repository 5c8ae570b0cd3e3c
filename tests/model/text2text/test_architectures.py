"""Every family of encoder-decoders gives ``model.generate``'s tokens in padded batches."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from hf_triton.runtime.errors import LoadError
from hf_triton.text_generation.engines.generate.engine import GenerateEngine
from hf_triton.text_generation.engines.generate.lengths import max_lengths
from tests.support.driving import generate_all, running, setup
from tests.support.tiny_models import BART, T5, mixed_load, random_encoder_decoder, reference

EOS = 1
_BART = {**{name: value for name, value in BART.items() if name != "forced_eos_token_id"}}
_BLOCKS = {"max_position_embeddings": 256, "block_size": 4, "num_random_blocks": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "pegasus": _BART,
    "pegasus_x": {**_BART, "block_size": 8, "num_global_tokens": 2},
    "bigbird_pegasus": {**_BART, **_BLOCKS},
    "led": {
        **_BART,
        "max_encoder_position_embeddings": 128,
        "max_decoder_position_embeddings": 64,
        "attention_window": 16,
    },
    "blenderbot": _BART,
    "mvp": _BART,
    "plbart": _BART,
    "m2m_100": _BART,
    "longt5": {**T5, "local_radius": 8},
    "mt5": T5,
    "umt5": T5,
    "prophetnet": {
        "hidden_size": 32,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4,
        "max_position_embeddings": 64,
        "bos_token_id": 3,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixed_batch_has_generates_tokens(family: str) -> None:
    model = random_encoder_decoder(family, **FAMILIES[family])
    asked = mixed_load(8)
    expected = [tokens[1:] for tokens in reference(model, asked, min_gap=1e-5)]
    with running(GenerateEngine(setup(model, eos=[EOS], max_num_seqs=8))) as engine:
        assert generate_all(engine, asked, at_first=8) == expected


@pytest.mark.parametrize(
    "family, config, asked, expected",
    [
        ("bart", {}, None, (1024, 1024)),
        ("bart", {}, 300, (300, 300)),
        ("led", {}, None, (16384, 1024)),
        ("led", {}, 2000, (2000, 1024)),
        ("t5", {}, None, (2048, 2048)),
        ("t5", {"n_positions": 512}, None, (512, 512)),
        ("t5", {"n_positions": 512}, 4096, (4096, 4096)),
        ("gpt2", {"n_positions": 512}, None, (512, 512)),
    ],
)
def test_inputs_and_outputs_are_as_long_as_positions_reach(
    family: str, config: dict[str, int], asked: int | None, expected: tuple[int, int]
) -> None:
    assert max_lengths(AutoConfig.for_model(family, **config), asked) == expected


def test_max_model_len_beyond_an_encoders_positions_is_an_error() -> None:
    with pytest.raises(LoadError) as raised:
        max_lengths(AutoConfig.for_model("bart"), 1025)
    assert str(raised.value) == "max_model_len: got 1025, the model's own limit is 1024 tokens"

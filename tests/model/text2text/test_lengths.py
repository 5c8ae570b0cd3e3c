"""Limits of the inputs' and outputs' lengths of encoder-decoders."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from hf_triton.runtime.errors import LoadError
from hf_triton.text_generation.engines.generate.lengths import max_lengths


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

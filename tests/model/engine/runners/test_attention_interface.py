"""Falcon and GPT-J go through transformers' attention interface, and no other model."""

from __future__ import annotations

import pytest
import torch

from hf_triton.text_generation.forward.transformers.attention_interface import (
    use_attention_interface,
)
from hf_triton.text_generation.memory.layer_shapes import layer_shapes
from tests.support.tiny_models import tiny_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind, kv_heads", [("falcon-rotary", 1), ("falcon-new", 2)])
def test_the_cache_keeps_each_key_head_once(kind: str, kv_heads: int) -> None:
    model = tiny_model(kind)
    use_attention_interface(model)
    assert {shape.num_kv_heads for shape in layer_shapes(model, CPU)} == {kv_heads}


@pytest.mark.parametrize("name", ["falcon-alibi", "llama"])
def test_others_are_left_as_they_are(name: str) -> None:
    model = tiny_model(name)
    before = [vars(module).get("forward") for module in model.modules()]
    use_attention_interface(model)
    assert [vars(module).get("forward") for module in model.modules()] == before

"""Falcon and GPT-J through transformers' attention interface give their own logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_triton.text_generation.forward.transformers.attention_interface import (
    use_attention_interface,
)
from hf_triton.text_generation.memory.layer_shapes import layer_shapes
from tests.support.tiny_models import PACKED, tiny_model

CPU = torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {
    "falcon-rotary": {},  # one key head
    "falcon-new": {},  # two
    "a key head for each": {"multi_query": False},
    "gptj": {},
}


def tiny(kind: str, **changes: Any) -> Any:
    name = kind if kind in PACKED else "falcon-rotary"
    return tiny_model(name, **KINDS[kind], **changes)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_logits_stay_as_they_were(kind: str, attention: str) -> None:
    model = tiny(kind, attn_implementation="eager" if kind == "gptj" else attention)
    tokens = torch.randint(0, 97, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[0, :4] = 0
    expected = model(tokens, attention_mask=mask).logits
    use_attention_interface(model)
    logits = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(logits[1], expected[1])
    torch.testing.assert_close(logits[0, 4:], expected[0, 4:])


@pytest.mark.parametrize("kind, kv_heads", [("falcon-rotary", 1), ("falcon-new", 2)])
def test_the_cache_keeps_each_key_head_once(kind: str, kv_heads: int) -> None:
    model = tiny(kind)
    use_attention_interface(model)
    assert {shape.num_kv_heads for shape in layer_shapes(model, CPU)} == {kv_heads}


@pytest.mark.parametrize("name", ["falcon-alibi", "llama"])
def test_others_are_left_as_they_are(name: str) -> None:
    model = tiny_model(name)
    before = [vars(module).get("forward") for module in model.modules()]
    use_attention_interface(model)
    assert [vars(module).get("forward") for module in model.modules()] == before

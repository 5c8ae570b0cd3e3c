"""The cache of each layer, as it is read off a model."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig

from hf_triton.text_generation.forward.transformers.attention_interface import (
    use_attention_interface,
)
from hf_triton.text_generation.memory.layer_shapes import (
    LayerShape,
    context_length,
    layer_shapes,
)
from hf_triton.text_generation.memory.paged_cache import spread_free_bytes
from tests.support.tiny_models import tiny_model

CPU = torch.device("cpu")
KIB_LAYER = LayerShape(num_kv_heads=2, key_dim=32, value_dim=32, dtype=torch.float32, device=CPU)
SHAPES = [KIB_LAYER, KIB_LAYER]  # 1,024 bytes a token


def test_the_device_with_the_least_room_decides() -> None:
    meta = torch.device("meta")
    elsewhere = LayerShape(2, 32, 32, torch.float32, meta)
    free = {CPU: 9000, meta: 100}
    # A third of the cache lies where 100 bytes are free: 300 in all.
    assert spread_free_bytes([KIB_LAYER, KIB_LAYER, elsewhere], 8, free.__getitem__) == 300
    assert spread_free_bytes(SHAPES, 8, free.__getitem__) == 9000


def test_layer_shapes_are_read_off_the_model() -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    expected = LayerShape(2, 8, 8, torch.bfloat16, CPU)
    assert layer_shapes(model, CPU) == [expected, expected]
    assert expected.bytes_per_token == 2 * 16 * 2


@pytest.mark.parametrize(
    "model_type, config, expected",
    [
        ("llama", {"max_position_embeddings": 77}, 77),
        ("gpt2", {"n_positions": 78}, 78),
        ("mpt", {"max_seq_len": 79}, 79),
        ("bloom", {}, None),
    ],
)
def test_context_length_has_many_names(
    model_type: str, config: dict[str, int], expected: int | None
) -> None:
    assert context_length(AutoConfig.for_model(model_type, **config)) == expected


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

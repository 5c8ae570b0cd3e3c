"""The cache's size from a budget, and its layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig

from hf_triton.runtime.errors import LoadError
from hf_triton.text_generation.memory.kv_cache import (
    CacheSize,
    KVCache,
    context_length,
    plan_size,
    prefix_slots,
    spread_free_bytes,
)
from hf_triton.text_generation.memory.layer_shapes import (
    LayerShape,
    StateShape,
    layer_shapes,
    sequence_bytes,
)
from tests.support.tiny_models import RWKV, random_model, tiny_model

GIB = 2**30
CPU = torch.device("cpu")
KIB_LAYER = LayerShape(num_kv_heads=2, key_dim=32, value_dim=32, dtype=torch.float32, device=CPU)
SHAPES = [KIB_LAYER, KIB_LAYER]  # 1,024 bytes a token
ASKS_NOTHING: dict[str, Any] = {
    "model_limit": None,
    "max_model_len": None,
    "max_num_seqs": None,
    "kv_cache_gib": None,
    "free_bytes": 16 * GIB,
}


def planned(**asked: Any) -> tuple[int, int]:
    size = plan_size(SHAPES, **{**ASKS_NOTHING, **asked})
    assert size.num_bytes == size.num_slots * size.max_model_len * 1024
    return size.num_slots, size.max_model_len


@pytest.mark.parametrize(
    "asked, expected",
    [
        ({"model_limit": 512}, (128, 512)),
        ({}, (128, 2048)),  # no limit of its own
        ({"model_limit": 512, "max_model_len": 100}, (128, 100)),
        ({"model_limit": 512, "max_num_seqs": 3}, (3, 512)),
        # 64 x 131,072 tokens are 8 GiB and fit half of 16. Of less there are fewer sequences, then
        # fewer tokens, then fewer sequences again.
        ({"model_limit": 131072}, (64, 131072)),
        ({"model_limit": 131072, "free_bytes": 15 * GIB}, (60, 131072)),
        ({"model_limit": 131072, "free_bytes": GIB}, (8, 65536)),
        ({"model_limit": 131072, "free_bytes": GIB, "max_num_seqs": 64}, (64, 8192)),
        ({"model_limit": 131072, "free_bytes": GIB // 32}, (4, 4096)),
        ({"model_limit": 2048, "free_bytes": 20 * 2**20}, (5, 2048)),  # half of it: 10 MiB
        ({"model_limit": 2048, "kv_cache_gib": 4 / 1024}, (2, 2048)),
        ({"model_limit": 2048, "kv_cache_gib": 4, "max_num_seqs": 7}, (7, 2048)),
        ({"model_limit": 2048, "kv_cache_gib": 15}, (128, 2048)),  # more than half may be asked for
    ],
)
def test_what_was_asked_for_or_the_most_that_fits(
    asked: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert planned(**asked) == expected


@pytest.mark.parametrize(
    "asked, expected",
    [
        (
            {"model_limit": 512, "max_model_len": 513},
            "max_model_len: got 513, the model's own limit is 512 tokens",
        ),
        (
            {"model_limit": 512, "kv_cache_gib": 16.5},
            "kv_cache_gib: got 16.5, but 16.00 GiB are free on cpu",
        ),
        (
            {"model_limit": 4096, "max_num_seqs": 512, "kv_cache_gib": 1},
            (
                "the KV cache does not fit: 512 sequences (max_num_seqs) x 4096 tokens "
                "(max_model_len) x 1024 bytes = 2.00 GiB, but kv_cache_gib is 1, which holds 256 "
                "sequences of that length or 2048 tokens each: lower one of them or raise kv_cach"
            ),
        ),
        (
            {"model_limit": 4096, "max_num_seqs": 512, "free_bytes": 2 * GIB},
            (
                "the KV cache does not fit: 512 sequences (max_num_seqs) x 4096 tokens "
                "(max_model_len) x 1024 bytes = 2.00 GiB, but 1.00 GiB may be used, which holds"
            ),
        ),
        (
            {"max_model_len": 2**20, "free_bytes": GIB},
            "the KV cache does not fit: 1 sequences (max_num_seqs) x 1048576 tokens",
        ),
    ],
)
def test_what_does_not_fit_is_an_error_with_all_numbers(
    asked: dict[str, Any], expected: str
) -> None:
    with pytest.raises(LoadError) as raised:
        planned(**asked)
    assert str(raised.value).startswith(expected)


def test_prefixes_have_as_many_slots_as_their_budget_holds() -> None:
    size = CacheSize(num_slots=4, max_model_len=1024, num_bytes=4 * 2**20)
    assert prefix_slots(size, 0.01, GIB) == CacheSize(4, 1024, 14 * 2**20, num_prefix_slots=10)


def test_a_budget_for_prefixes_that_holds_none_or_is_not_there_is_an_error() -> None:
    size = CacheSize(num_slots=100, max_model_len=1024, num_bytes=100 * 2**20)
    said = []
    for gib in (0.0005, 1):
        with pytest.raises(LoadError) as raised:
            prefix_slots(size, gib, GIB)
        said.append(str(raised.value))
    assert said == [
        "prefix_cache_gib: got 0.0005, but one sequence of 1024 tokens takes 0.000977 GiB",
        "prefix_cache_gib: got 1, but 1.00 GiB are free and the cache of those that run takes 0.10",
    ]


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


def test_a_state_for_so_many_tokens_grows_with_the_longest_sequence() -> None:
    entries = StateShape("compressor.entries", 0, (4,), torch.float32, per=16)
    layer = LayerShape(1, 8, 0, torch.float32, CPU, states=(entries,))
    assert [entries.shape_for(length) for length in (16, 17)] == [(1, 4), (2, 4)]
    assert sequence_bytes([layer], 17) == 17 * 32 + 2 * 16
    cache = KVCache([layer], CacheSize(num_slots=3, max_model_len=33, num_bytes=0))
    assert cache.states[0][0].shape == (3, 3, 4)


def test_states_outside_of_the_cache_are_of_a_layer_of_their_own() -> None:
    (shape,) = layer_shapes(random_model("rwkv", **RWKV), CPU)
    assert [state.kind for state in shape.states] == ["own"] * 5
    assert (shape.num_kv_heads, shape.is_plain) == (0, False)


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

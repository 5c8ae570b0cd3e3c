"""Packed attention against attention spelled out token by token in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from hf_triton.text_generation.forward.transformers.packed_attention import (
    AttentionRule,
    PackedStep,
    PrefillSpan,
    _prefill_folded,
    packed_attention,
    visible_columns,
)
from hf_triton.text_generation.memory.kv_cache import CacheSize, KVCache
from hf_triton.text_generation.memory.layer_shapes import LayerShape

HEADS, KV_HEADS, KEY_DIM, VALUE_DIM = 6, 2, 8, 4
NUM_SLOTS, MAX_LEN = 6, 24
LAYER = SimpleNamespace(layer_idx=1)
CPU = torch.device("cpu")
DECODE_POSITIONS = [5, 0, 17, 9]  # of slots 0 to 3
WHOLE = PrefillSpan(first=4, slot=4, start=0, end=7)
CHUNK = PrefillSpan(first=11, slot=5, start=6, end=16)


def garbage_cache(dtype: torch.dtype) -> KVCache:
    """Every column holds numbers, so that one that must not be seen shows."""
    shape = LayerShape(KV_HEADS, KEY_DIM, VALUE_DIM, dtype, CPU)
    cache = KVCache([shape, shape], CacheSize(NUM_SLOTS, MAX_LEN, 0))
    generator = torch.Generator().manual_seed(1)
    for stored in (*cache.keys, *cache.values):
        stored.copy_(torch.randn(stored.shape, generator=generator) * 3)
    return cache


def step_of(cache: KVCache, num_decodes: int, spans: list[PrefillSpan]) -> PackedStep:
    positions, slots = DECODE_POSITIONS[:num_decodes], list(range(num_decodes))
    for span in spans:
        positions = positions + list(range(span.start, span.end))
        slots += [span.slot] * (span.end - span.start)
    where = torch.tensor(slots), torch.tensor(positions)
    return PackedStep(cache, *where, num_decodes, max_len=20, prefills=spans)


def spelled_out(
    query: torch.Tensor, step: PackedStep, scale: float, window: int, softcap: float
) -> torch.Tensor:
    """(num_tokens, heads, value_dim), from the cache after the step's own keys were written."""
    keys, values = step.cache.keys[1].double(), step.cache.values[1].double()
    rows = []
    for token, (slot, position) in enumerate(zip(step.slots, step.positions, strict=True)):
        first = max(0, int(position) + 1 - window) if window else 0
        seen = slice(first, int(position) + 1)
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = keys[slot, kv_head, seen] @ query[0, head, token].double() * scale
            if softcap:
                scores = torch.tanh(scores / softcap) * softcap
            rows.append(scores.softmax(0) @ values[slot, kv_head, seen])
    return torch.stack(rows).view(-1, HEADS, VALUE_DIM)


@pytest.mark.parametrize(
    "window, softcap, dtype",
    [(None, None, torch.float32), (4, 2.0, torch.float32), (12, None, torch.bfloat16)],
)
@pytest.mark.parametrize(
    "num_decodes, spans",
    [(4, []), (0, [PrefillSpan(0, 2, 0, 7)]), (4, [WHOLE, CHUNK])],
    ids=["decodes", "a prompt", "decodes, a prompt and a chunk"],
)
def test_every_token_sees_its_own_sequence_up_to_itself(
    num_decodes: int,
    spans: list[PrefillSpan],
    window: int | None,
    softcap: float | None,
    dtype: torch.dtype,
) -> None:
    cache = garbage_cache(dtype)
    step = step_of(cache, num_decodes, spans)
    generator = torch.Generator().manual_seed(2)
    query, key, value = (
        torch.randn(1, heads, len(step.slots), dim, generator=generator).to(dtype)
        for heads, dim in ((HEADS, KEY_DIM), (KV_HEADS, KEY_DIM), (KV_HEADS, VALUE_DIM))
    )
    got, _ = packed_attention(
        step, LAYER, query, key, value, None, scaling=0.3, sliding_window=window, softcap=softcap
    )
    for token, (slot, column) in enumerate(zip(step.slots, step.positions, strict=True)):
        assert torch.equal(cache.keys[1][slot, :, column], key[0, :, token])
        assert torch.equal(cache.values[1][slot, :, column], value[0, :, token])
    expected = spelled_out(query, step, 0.3, window or 0, softcap or 0.0)
    assert got.shape == (1, len(step.slots), HEADS, VALUE_DIM)
    atol = 1e-5 if dtype == torch.float32 else 0.06
    torch.testing.assert_close(got[0].double(), expected, rtol=0, atol=atol)


def test_the_scale_is_the_head_dimensions_root_unless_given() -> None:
    step = step_of(garbage_cache(torch.float32), 4, [])
    query = torch.randn(1, HEADS, 4, KEY_DIM)
    key, value = torch.randn(1, KV_HEADS, 4, KEY_DIM), torch.randn(1, KV_HEADS, 4, VALUE_DIM)
    got, _ = packed_attention(step, LAYER, query, key, value, None)
    expected = spelled_out(query, step, KEY_DIM**-0.5, 0, 0.0)
    torch.testing.assert_close(got[0].double(), expected, rtol=0, atol=1e-5)


def test_other_layers_and_other_columns_are_not_written() -> None:
    cache, before = garbage_cache(torch.float32), garbage_cache(torch.float32)
    step = step_of(cache, 4, [WHOLE, CHUNK])
    num_tokens = len(step.slots)
    packed_attention(
        step,
        LAYER,
        torch.zeros(1, HEADS, num_tokens, KEY_DIM),
        torch.zeros(1, KV_HEADS, num_tokens, KEY_DIM),
        torch.zeros(1, KV_HEADS, num_tokens, VALUE_DIM),
        None,
    )
    assert torch.equal(cache.keys[0], before.keys[0])
    changed = (cache.keys[1] != before.keys[1]).any(dim=-1).any(dim=1)  # (slots, length)
    expected = torch.zeros_like(changed)
    expected[step.slots, step.positions] = True
    assert torch.equal(changed, expected)


@pytest.mark.parametrize("window", [0, 4])
def test_a_chunk_with_its_heads_folded_attends_as_each_head_alone(window: int) -> None:
    q = torch.randn(1, HEADS, 10, KEY_DIM)
    k, v = torch.randn(1, KV_HEADS, 16, KEY_DIM), torch.randn(1, KV_HEADS, 16, VALUE_DIM)
    rule = AttentionRule(0.5, window)
    folded = _prefill_folded(q, k, v, CHUNK, rule)
    visible = visible_columns(CHUNK, rule, CPU)
    alone = F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=rule.scale, enable_gqa=True
    )
    torch.testing.assert_close(folded, alone)

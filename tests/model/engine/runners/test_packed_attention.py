"""On a GPU a chunk of a prompt attends with its heads folded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hf_triton.text_generation.forward.transformers.packed_attention import (
    AttentionRule,
    PrefillSpan,
    _prefill_folded,
    visible_columns,
)

HEADS, KV_HEADS, KEY_DIM, VALUE_DIM = 6, 2, 8, 4
CPU = torch.device("cpu")
CHUNK = PrefillSpan(first=11, slot=5, start=6, end=16)


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

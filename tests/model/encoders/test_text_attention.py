"""Attention of packed texts, by the compiled loops, against plain attention."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch

from hf_triton.encoder.fused.attention import Encoder, TextAttention, Texts
from hf_triton.runtime.fused.parts import Attention, Embedding, Layer
from hf_triton.runtime.fused.row_loops import RowLoops
from hf_triton.runtime.kernels.compiled_loops import ThreadTeam

_LENGTHS = (1, 3, 16, 17, 32, 33, 64, 95, 200, 1030)
_LONGEST = 1030


@pytest.mark.parametrize(
    "heads, kv_heads, dim, window, is_causal",
    [(4, 4, 32, 0, False), (4, 2, 64, 0, True), (2, 1, 128, 20, False), (2, 2, 24, 65, True)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_token_looks_at_those_of_its_text_that_it_may(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int, is_causal: bool
) -> None:
    torch.manual_seed(heads)
    qkv = torch.randn(sum(_LENGTHS), (heads + 2 * kv_heads) * dim).to(dtype)
    for bias in (None, torch.randn(heads, 2 * _LONGEST - 1)):
        changes: dict[str, Any] = {"window": window, "is_causal": is_causal, "bias": bias}
        one = Attention(torch.nn.Identity(), torch.nn.Identity(), heads, dim**-0.5, **changes)
        found = _computed(one, qkv, kv_heads, dim)
        ends = accumulate(_LENGTHS, initial=0)
        expected = [_plain(one, qkv[first:last], dim) for first, last in pairwise(ends)]
        largest = (found.float() - torch.cat(expected)).abs().max()
        assert largest < (2e-5 if dtype == torch.float32 else 3e-2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_text_whose_scores_overflow_gets_no_numbers(dtype: torch.dtype, is_causal: bool) -> None:
    """All of them: none is larger than those of masked tokens. Its neighbours get theirs."""
    heads, dim = 2, 32
    qkv = torch.randn(sum(_LENGTHS), 3 * heads * dim).to(dtype)
    text = slice(sum(_LENGTHS[:2]), sum(_LENGTHS[:3]))
    qkv[text, : heads * dim], qkv[text, heads * dim : 2 * heads * dim] = 1e30, -1e30
    changes: dict[str, Any] = {"is_causal": is_causal, "bias": torch.zeros(heads, 2 * _LONGEST - 1)}
    one = Attention(torch.nn.Identity(), torch.nn.Identity(), heads, dim**-0.5, **changes)
    is_finite = _computed(one, qkv, heads, dim).isfinite()
    assert not is_finite[text].any()
    assert is_finite[: text.start].all()
    assert is_finite[text.stop :].all()


def _computed(one: Attention, qkv: torch.Tensor, kv_heads: int, dim: int) -> torch.Tensor:
    layer = Layer(one, torch.nn.Identity(), None, None)
    embedding = Embedding(torch.nn.Identity())
    team = ThreadTeam(torch.get_num_threads())
    encoder = Encoder(embedding, [layer], None, kv_heads, dim)
    attend = TextAttention(encoder, RowLoops(qkv.dtype, team), team)
    ends = list(accumulate(_LENGTHS, initial=0))
    return attend(one, qkv.clone(), Texts(max(_LENGTHS), torch.tensor(ends), torch.zeros(0)))


def _plain(one: Attention, qkv: torch.Tensor, dim: int) -> torch.Tensor:
    """In float32."""
    heads, count = one.num_heads, len(qkv)
    query, *others = qkv.float().view(count, -1, dim).transpose(0, 1).tensor_split((heads,))
    key, value = others[0].repeat_interleave(2 * heads // len(others[0]), 0).chunk(2)
    scores = query @ key.transpose(1, 2) * one.scale
    tokens = torch.arange(count)
    distance = tokens - tokens[:, None]
    if one.bias is not None:
        scores = scores + one.bias[:, distance + _LONGEST - 1]
    near = distance.abs() < one.window if one.window else torch.ones(count, count, dtype=torch.bool)
    if one.is_causal:
        near &= distance <= 0
    weights = scores.masked_fill(~near, float("-inf")).softmax(-1)
    return (weights @ value).transpose(0, 1).flatten(1)

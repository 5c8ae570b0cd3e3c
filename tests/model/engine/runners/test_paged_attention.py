"""Plain attention over pages against attention spelled out token by token in float64."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hf_triton.text_generation.engine.step import PrefillChunk, Step
from hf_triton.text_generation.engines.in_flight.trial import dummy_sequence
from hf_triton.text_generation.forward.paged import attention as plain
from hf_triton.text_generation.forward.paged.attention import plain_attention, row_attention
from hf_triton.text_generation.forward.paged.step import (
    PagedStep,
    lay_out_pages,
)
from hf_triton.text_generation.memory.layer_shapes import LayerShape
from hf_triton.text_generation.memory.paged_cache import PagedCache
from hf_triton.text_generation.memory.pages import PagedSize
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence

HEADS, KV_HEADS, KEY_DIM, VALUE_DIM = 6, 2, 8, 4
CPU = torch.device("cpu")
LAYER = SimpleNamespace(layer_idx=1)
SINKS = torch.linspace(-2, 3, HEADS)
ALL, PIECE_BY_PIECE = 2**25, 300  # numbers at once


def sequence(num_computed: int, pages: list[int], num_prompt: int = 3) -> Sequence:
    """One of which so many tokens are computed; its tokens are 100, 101 and so on."""
    one = dummy_sequence(list(range(100, 100 + num_prompt)), SamplingParams(max_tokens=99))
    one.token_ids = list(range(100 + num_prompt, 100 + num_computed))
    one.num_computed_tokens, one.pages = num_computed, array("i", pages)
    return one


def mixed_step() -> Step:
    """Decodes at positions 5, 1 and 36; a whole prompt of 20 tokens; tokens 16 .. 39 of 45. Pages 3
    and 4 are of two sequences.
    """
    decodes = [sequence(6, [7]), sequence(2, [2], 1), sequence(37, [3, 4, 9])]
    whole, chunk = sequence(20, [5, 8], 20), sequence(40, [3, 4, 1], 45)
    return Step(decodes, [PrefillChunk(whole, 0, 20), PrefillChunk(chunk, 16, 40)])


def decodes_only() -> Step:
    return Step(mixed_step().decodes)


def chunks_only() -> Step:
    return Step([], mixed_step().prefills)


def garbage_cache(dtype: torch.dtype = torch.float32) -> PagedCache:
    """Every token of every page holds numbers, so that one that must not be seen shows."""
    shape = LayerShape(KV_HEADS, KEY_DIM, VALUE_DIM, dtype, CPU)
    cache = PagedCache([shape, shape], PagedSize(10, 64, 5, 0))
    generator = torch.Generator().manual_seed(1)
    for stored in (*cache.keys, *cache.values):
        stored.copy_(torch.randn(stored.shape, generator=generator) * 3)
    return cache


def spelled_out(
    query: torch.Tensor,
    step: PagedStep,
    scale: float,
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """(num_tokens, heads, value_dim), from the cache after the step's own keys were written."""
    keys, values = step.cache.keys[1].double(), step.cache.values[1].double()
    rows = []
    for number in range(len(step.lengths)):
        first, last = step.starts[number : number + 2].tolist()
        pages = step.block_table[number]
        k, v = keys[pages].flatten(0, 1), values[pages].flatten(0, 1)
        for token in range(first, last):
            position = int(step.positions[token])
            seen = slice(max(0, position + 1 - window) if window else 0, position + 1)
            for head in range(HEADS):
                kv_head = head // (HEADS // KV_HEADS)
                scores = k[seen, kv_head] @ query[0, head, token].double() * scale
                if softcap:
                    scores = torch.tanh(scores / softcap) * softcap
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head : head + 1].double()])
                weights = scores.softmax(0)[: position + 1 - seen.start]
                rows.append(weights @ v[seen, kv_head])
    return torch.stack(rows).view(-1, HEADS, VALUE_DIM)


def states(num_tokens: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Queries, keys and values (1, heads, num_tokens, dim)."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((HEADS, KEY_DIM), (KV_HEADS, KEY_DIM), (KV_HEADS, VALUE_DIM))
    return [
        torch.randn(1, heads, num_tokens, dim, generator=generator).to(dtype)
        for heads, dim in shapes
    ]


@pytest.mark.parametrize("make", [decodes_only, chunks_only, mixed_step])
@pytest.mark.parametrize(
    "window, softcap, sinks, dtype, at_once",
    [
        (None, None, None, torch.float32, ALL),
        (4, 2.0, SINKS, torch.float32, PIECE_BY_PIECE),
        (18, None, SINKS, torch.bfloat16, ALL),
        (18, 2.0, None, torch.bfloat16, PIECE_BY_PIECE),
    ],
)
def test_every_token_sees_its_own_sequence_up_to_itself(
    make: Callable[[], Step],
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    dtype: torch.dtype,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "MOST_NUMBERS", at_once)
    step = lay_out_pages(make(), garbage_cache(dtype), CPU)
    query, key, value = states(step.num_tokens, dtype)
    rule: dict[str, Any] = {
        "scaling": 0.3,
        "sliding_window": window,
        "softcap": softcap,
        "s_aux": sinks,
    }
    got, _ = row_attention(step, plain_attention, LAYER, query, key, value, None, **rule)
    expected = spelled_out(query, step, 0.3, window or 0, softcap or 0.0, sinks)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(got[0].double(), expected, rtol=tolerance, atol=tolerance)

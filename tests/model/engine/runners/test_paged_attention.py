"""The layout of a step over pages, and plain attention over them against attention spelled out
token by token in float64.
"""

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
    Decodes,
    PagedStep,
    StepShape,
    lay_out_pages,
)
from hf_triton.text_generation.memory.layer_shapes import LayerShape
from hf_triton.text_generation.memory.paged_cache import PagedCache, PagedSize
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


def on_device(step: Step, cache: PagedCache, shape: StepShape | None = None) -> PagedStep:
    return lay_out_pages(step, cache, CPU, shape)


def test_a_step_lies_in_one_row_decodes_first() -> None:
    step = on_device(mixed_step(), garbage_cache())
    assert step.token_ids.tolist() == [105, 101, 136, *range(100, 120), *range(116, 140)]
    assert step.positions.tolist() == [5, 1, 36, *range(20), *range(16, 40)]
    rows = [7 * 16 + 5, 2 * 16 + 1, 9 * 16 + 4, *range(80, 96), *range(128, 132)]
    assert step.long_rows.tolist() == [*rows, *range(64, 80), *range(16, 24)]
    assert step.starts.tolist() == [0, 1, 2, 3, 23, 47]
    assert step.lengths.tolist() == [6, 2, 37, 20, 40]
    assert step.key_starts.tolist() == [0, 6, 8, 45, 65, 105]
    table = [[7, 0, 0], [2, 0, 0], [3, 4, 9], [5, 8, 0], [3, 4, 1]]
    assert step.block_table.tolist() == table
    assert step.most_keys == 48
    assert step.last.tolist() == [0, 1, 2, 22]  # the chunk's last token is not the prompt's
    assert (step.num_tokens, step.max_query_len) == (47, 24)
    assert step.on_host == (step.starts.tolist(), step.lengths.tolist())


def test_what_a_preempted_sequence_generated_is_computed_with_its_prompt() -> None:
    one = sequence(5, [6], num_prompt=2)
    one.preempt()
    assert one.num_prefill_tokens == 5
    step = on_device(Step([], [PrefillChunk(one, 0, 5)]), garbage_cache())
    assert step.token_ids.tolist() == [100, 101, 102, 103, 104]
    assert step.last.tolist() == [4]


def test_padding_are_sequences_of_one_token_in_the_page_of_nobody() -> None:
    step = on_device(decodes_only(), garbage_cache(), StepShape(5, 5, 5, 4))
    assert step.long_rows.tolist()[3:] == step.positions.tolist()[3:] == [0] * 2
    assert step.starts.tolist() == [0, 1, 2, 3, 4, 5]
    assert step.lengths.tolist() == [6, 2, 37, 1, 1]
    assert step.key_starts.tolist() == [0, 6, 8, 45, 46, 47]
    assert step.last.tolist()[:3] == [0, 1, 2]
    assert step.block_table.tolist() == [[7, 0, 0, 0], [2, 0, 0, 0], [3, 4, 9, 0], *[[0] * 4] * 2]


def laid_out(step: PagedStep) -> dict[str, list[int]]:
    """All of its numbers that are not padding."""
    names = ("token_ids", "positions", "sequences", "lengths", "key_starts", "starts", "last")
    numbers = {name: getattr(step, name).tolist() for name in names}
    return {**numbers, "rows": step.long_rows.tolist()}


def test_decodes_that_go_on_are_laid_out_as_anew() -> None:
    step, cache = decodes_only(), garbage_cache()
    kept = Decodes(step, cache)
    for number in range(30):
        for one in step.decodes[number % 2 :]:  # one may have to wait for its grammar
            one.num_computed_tokens += 1
            one.token_ids.append(200 + number)
            if one.num_computed_tokens > 16 * len(one.pages):
                one.pages.append(10 + number)
        step = Step(step.decodes)
        assert kept.go_on(step)
        found = laid_out(kept.step)
        assert found == laid_out(on_device(step, cache))
        assert kept.step.on_host == (found["starts"], found["lengths"])


def test_decodes_of_other_pages_or_too_many_are_laid_out_anew() -> None:
    step, cache = decodes_only(), garbage_cache()
    kept = Decodes(step, cache)
    assert kept.go_on(step)
    assert not kept.go_on(Step(step.decodes[:2]))
    step.decodes[0].pages = array("i", [7])  # it was preempted and came back
    assert not kept.go_on(step)
    kept = Decodes(step, cache)
    step.decodes[0].pages.extend(range(20, 31))
    assert not kept.go_on(step)


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
    step = on_device(make(), garbage_cache(dtype))
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


def test_padding_changes_nothing() -> None:
    cache = garbage_cache()
    alone, padded = (
        on_device(decodes_only(), cache),
        on_device(decodes_only(), cache, StepShape(8, 8, 8, 4)),
    )
    query, key, value = states(8)
    outs = []
    for step in (alone, padded):
        q, k, v = (each[:, :, : step.num_tokens] for each in (query, key, value))
        outs.append(
            row_attention(step, plain_attention, LAYER, q, k, v, None)[0][0, : alone.num_tokens]
        )
    assert torch.equal(outs[0], outs[1])


def test_only_the_steps_own_tokens_of_its_own_layer_are_written() -> None:
    cache, before = garbage_cache(), garbage_cache()
    step = on_device(mixed_step(), cache)
    query, key, value = states(step.num_tokens)
    row_attention(step, plain_attention, LAYER, query, key, value, None)
    assert torch.equal(cache.keys[0], before.keys[0])
    changed = (cache.keys[1] != before.keys[1]).any(dim=-1).any(dim=-1).flatten()
    assert changed.nonzero().flatten().tolist() == sorted(step.long_rows.tolist())
    assert torch.equal(cache.values[1].flatten(0, 1)[step.long_rows], value[0].transpose(0, 1))

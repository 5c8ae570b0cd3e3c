"""The largest step that a load tries before it sizes the cache."""

from __future__ import annotations

import pytest

from hf_triton.text_generation.engines.in_flight.largest_step import largest_step
from hf_triton.text_generation.memory.kv_cache import CacheSize
from hf_triton.text_generation.memory.paged_cache import PagedSize
from hf_triton.text_generation.memory.pages import num_pages_of


@pytest.mark.parametrize("max_model_len, num_tokens", [(4096, 512), (4096, 8192), (200, 64)])
def test_it_has_a_row_of_logits_for_every_sequence_and_ends_a_full_prompt(
    max_model_len: int, num_tokens: int
) -> None:
    size = PagedSize(1001, max_model_len, max_num_seqs=16, num_bytes=0)
    step = largest_step(size, num_tokens, in_pages=True)
    (chunk,) = step.prefills
    assert len(step.sampled) == 16
    assert chunk.end == max_model_len - 1
    assert step.num_tokens == min(num_tokens, max_model_len - 1 + 15)
    for sequence in step.sampled:
        assert len(sequence.pages) >= num_pages_of(sequence.num_computed_tokens)
    attended = sum(sequence.num_computed_tokens for sequence in step.decodes)
    assert attended <= size.num_tokens + 16


def test_in_slots_it_is_the_prompt_alone() -> None:
    step = largest_step(CacheSize(8, 100, num_bytes=0), 512, in_pages=False)
    assert step.decodes == []
    assert step.num_tokens == 99
    assert step.sampled[0].slot == 0

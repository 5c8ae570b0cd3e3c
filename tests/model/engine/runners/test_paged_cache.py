"""The number of pages, from a stated budget; their layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_triton.runtime.errors import LoadError
from hf_triton.text_generation.engines.in_flight import largest_step
from hf_triton.text_generation.memory.layer_shapes import LayerShape, StateShape
from hf_triton.text_generation.memory.paged_cache import PagedCache, plan_pages
from hf_triton.text_generation.memory.pages import PagedSize
from hf_triton.text_generation.options import Options

GIB, MIB = 2**30, 2**20
CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def sized(
    layers: list[LayerShape],
    model_limit: int | None = None,
    free_bytes: int = 20 * GIB,
    **asked: Any,
) -> PagedSize:
    return plan_pages(layers, Options(**asked), model_limit, lambda _: free_bytes)


def planned(device: torch.device = GPU, **asked: Any) -> PagedSize:
    layer = LayerShape(num_kv_heads=2, key_dim=32, value_dim=32, dtype=torch.float32, device=device)
    size = sized([layer, layer], **asked)  # 1,024 bytes a token
    assert size.num_bytes == size.num_pages * size.page_size * 1024
    assert size.page_size == (256 if device is GPU else 16)
    return size


def numbers(size: PagedSize) -> tuple[int, int, int]:
    return size.num_pages - 1, size.max_model_len, size.max_num_seqs


@pytest.mark.parametrize(
    "asked, expected",
    [
        # Pages for 512 sequences of the model's length.
        ({"model_limit": 1024}, (512 * 4, 1024, 512)),
        ({"model_limit": 1000}, (512 * 4, 1000, 512)),
        # 18 of 20 GiB, less page 0.
        ({"model_limit": 131072}, (18 * 4096 - 1, 131072, 512)),
        ({}, (512 * 8, 2048, 512)),  # no limit of its own
        # All that is asked for is taken: prefixes use what sequences don't.
        ({"model_limit": 1024, "kv_cache_gib": 19}, (19 * 4096 - 1, 1024, 512)),
        ({"model_limit": 1024, "max_num_seqs": 3}, (3 * 4, 1024, 3)),
        ({"model_limit": 1024, "max_model_len": 300, "max_num_seqs": 700}, (700 * 2, 300, 700)),
        # The pages' capacity, if the model's own length is more.
        ({"model_limit": 131072, "kv_cache_gib": 0.0625}, (255, 65280, 255)),
        ({"model_limit": 131072, "kv_cache_gib": 0.001}, (3, 768, 3)),
    ],
)
def test_what_was_asked_for_or_the_most_that_fits(
    asked: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    assert numbers(planned(**asked)) == expected


STATE = StateShape("recurrent", 0, (256, 1024), torch.float32)  # 1 MiB
STATES: dict[str, Any] = {"model_limit": 131072, "free_bytes": 10 * GIB, "kv_cache_gib": 4}


@pytest.mark.parametrize(
    "asked, expected",
    [
        # As many as have room with 4,096 tokens each, 4 + 1 MiB; pages get what states leave.
        ({**STATES, "kv_cache_gib": 1}, ((1024 - 205) * 4 - 1, 131072, 204)),
        (STATES, ((4096 - 513) * 4 - 1, 131072, 512)),
        ({**STATES, "max_num_seqs": 9}, ((4096 - 10) * 4 - 1, 131072, 9)),
        (
            {**STATES, "kv_cache_gib": None, "max_model_len": 2560, "max_num_seqs": 9},
            (90, 2560, 9),
        ),
    ],
)
def test_states_have_a_row_each_beside_the_pages(
    asked: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    layers = [
        LayerShape(2, 32, 32, torch.float32, GPU),
        LayerShape(2, 32, 32, torch.float32, GPU, states=(STATE,)),
    ]
    size = sized(layers, **asked)
    assert numbers(size) == expected
    assert size.num_bytes == size.num_pages * 256 * 1024 + (1 + size.max_num_seqs) * MIB


def test_a_model_of_states_alone_has_as_many_rows_as_fit() -> None:
    layer = LayerShape(0, 0, 0, torch.float32, GPU, states=(STATE,))
    size = sized([layer], kv_cache_gib=0.1)
    assert numbers(size) == (101 * 8, 2048, 101)
    with pytest.raises(LoadError, match="beside 1048576 bytes of states for each sequence"):
        sized([layer], kv_cache_gib=0.1, max_num_seqs=200)


def test_half_of_a_cpus_free_memory_is_taken_at_most() -> None:
    assert numbers(planned(CPU, model_limit=131072)) == (10 * 65536 - 1, 131072, 128)


def test_ended_sequences_keep_a_quarter_of_a_cpus_pages_where_no_budget_is_stated() -> None:
    assert planned(CPU, model_limit=131072).most_kept == (10 * 65536 - 1) // 4
    assert planned(CPU, model_limit=131072, kv_cache_gib=1).most_kept is None
    assert planned(GPU, model_limit=131072).most_kept is None


PAGES = " pages of 256 tokens (262144 bytes each), "
LOWER = "lower one of them or raise kv_cache_gib"


@pytest.mark.parametrize(
    "asked, expected",
    [
        (
            {"model_limit": 512, "max_model_len": 513},
            "max_model_len: got 513, the model's own limit is 512 tokens",
        ),
        ({"kv_cache_gib": 20.5}, "kv_cache_gib: got 20.5, but 20.00 GiB are free on cuda:0"),
        (
            {"max_model_len": 4096, "kv_cache_gib": 0.002},
            "one sequence of 4096 tokens (max_model_len) takes 16, but kv_cache_gib 0.002 "
            "holds 7" + PAGES + "1792 tokens: " + LOWER,
        ),
        (
            {"max_model_len": 1024, "max_num_seqs": 600, "free_bytes": 5 * MIB},
            "one sequence of 1024 tokens (max_model_len) takes 4 and max_num_seqs is 600, but the "
            "free memory holds 17" + PAGES + "4352 tokens: " + LOWER,
        ),
        (
            {"model_limit": 64, "free_bytes": -GIB},
            "one sequence of 64 tokens (max_model_len) takes 1, but the free memory holds 0"
            + PAGES
            + "0 tokens: "
            + LOWER,
        ),
    ],
)
def test_what_does_not_fit_is_an_error_with_all_numbers(
    asked: dict[str, Any], expected: str
) -> None:
    with pytest.raises(LoadError) as raised:
        planned(**asked)
    assert str(raised.value).removeprefix("the KV cache does not fit: ") == expected


def test_a_new_cache_is_zero_and_has_the_layers_shapes() -> None:
    shape = LayerShape(2, 3, 5, torch.bfloat16, CPU)
    cache = PagedCache([shape, shape], PagedSize(4, 48, 3, 0))
    assert [keys.shape for keys in cache.keys] == [(4, 16, 2, 3)] * 2
    assert [values.shape for values in cache.values] == [(4, 16, 2, 5)] * 2
    assert cache.keys[0].dtype == torch.bfloat16
    assert not cache.keys[0].any()
    assert not cache.values[1].any()


@pytest.mark.parametrize(
    "device, gib, options, expected",
    [
        (CPU, 0, {}, 512),
        (GPU, 80, {}, 8192),
        (GPU, 48, {}, 4096),
        (GPU, 24, {}, 2048),
        (GPU, 80, {"max_num_batched_tokens": 100}, 100),
        (CPU, 0, {"max_num_seqs": 600}, 600),  # each running sequence has one
    ],
)
def test_a_step_has_more_tokens_on_a_larger_gpu(
    device: torch.device,
    gib: int,
    options: dict[str, Any],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(largest_step, "total_bytes", lambda _: gib * GIB)
    max_num_seqs = options.get("max_num_seqs", 128)
    found = largest_step.max_num_batched_tokens(Options(**options), device, max_num_seqs)
    assert found == expected

"""Experts computed by shapes that the host knows give what transformers' loop over them gives."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

from hf_triton.runtime.fused import experts as grouped
from hf_triton.text_generation.forward.transformers import experts
from hf_triton.text_generation.forward.transformers.experts import (
    CPU_EXPERTS_NAME,
    EXPERTS_NAME,
    choose_experts,
)
from tests.support.tiny_models import random_model

CPU = torch.device("cpu")
GPU = torch.device("cuda:0")
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 16, "moe_intermediate_size": 16, "head_dim": 8},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8},  # transposed weights, biases, its own gate
}
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
}


def chosen(model: Any, capability: tuple[int, int]) -> str:
    with patch.object(torch.cuda, "get_device_capability", lambda _: capability):
        choose_experts(model, GPU)
    return str(model.config._experts_implementation)


@pytest.mark.parametrize("num_tokens", [1, 2, 9, 70])
@pytest.mark.parametrize("name", MIXTURES)
@torch.inference_mode()
def test_experts_without_the_host_give_what_the_loop_gives(name: str, num_tokens: int) -> None:
    model = random_model(name, **{**SHAPE, **MIXTURES[name]})
    tokens = torch.randint(0, 97, (1, num_tokens))
    assert chosen(model, (8, 6)) == EXPERTS_NAME
    logits = model(tokens).logits
    model.set_experts_implementation("eager")
    torch.testing.assert_close(logits, model(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MIXTURES)
@torch.inference_mode()
def test_experts_that_overflow_count_only_for_tokens_that_chose_them(name: str) -> None:
    model = random_model(name, **{**SHAPE, **MIXTURES[name]})
    module = next(part for part in model.modules() if hasattr(part, "has_post_expert_norm"))
    module.down_proj[2] = torch.finfo(torch.float32).max
    x, weights = torch.randn(6, SHAPE["hidden_size"]), torch.rand(6, 2)
    index = torch.tensor([[0, 1], [1, 3], [3, 0], [0, 2], [2, 3], [1, 0]])
    expected = module(x, index, weights)
    found = experts._every_expert(module, x, index, weights)
    assert expected[[0, 1, 2, 5]].isfinite().all()
    assert not expected[3:5].isfinite().any()
    torch.testing.assert_close(found[[0, 1, 2, 5]], expected[[0, 1, 2, 5]])
    assert not found[3:5].isfinite().any()


def test_each_way_is_taken_for_its_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations import moe

    taken = []
    ways = {"grouped_mm_experts_forward": moe, "batched_mm_experts_forward": moe}
    for name, owner in {**ways, "_every_expert": experts}.items():
        monkeypatch.setattr(owner, name, lambda *_, name=name: taken.append(name))
    module = type("Experts", (), {"num_experts": 16})
    for num_tokens in (2, 3, 64, 65):
        index = torch.zeros(num_tokens, 2, dtype=torch.int64)
        experts.experts_forward(module, torch.zeros(num_tokens, 4), index, index)
    assert taken == [
        "batched_mm_experts_forward",
        "_every_expert",
        "_every_expert",
        "grouped_mm_experts_forward",
    ]


@pytest.mark.parametrize(
    "capability, dtype, expected",
    [
        ((9, 0), torch.bfloat16, "grouped_mm"),
        ((9, 0), torch.float16, EXPERTS_NAME),
        ((8, 0), torch.bfloat16, EXPERTS_NAME),
        ((12, 0), torch.bfloat16, EXPERTS_NAME),
    ],
)
def test_grouped_products_are_left_where_they_are_one_kernel(
    capability: tuple[int, int], dtype: torch.dtype, expected: str
) -> None:
    model = random_model("mixtral", **{**SHAPE, **MIXTURES["mixtral"]}).to(dtype)
    assert chosen(model, capability) == expected


def test_without_experts_a_model_is_left_as_it_is() -> None:
    chosen(random_model("llama", **SHAPE), (8, 6))
    choose_experts(random_model("llama", **SHAPE), CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MIXTURES)
@torch.inference_mode()
def test_on_the_cpu_one_loop_computes_what_each_expert_does(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(name, **{**SHAPE, **MIXTURES[name]}).to(dtype)
    module = next(part for part in model.modules() if hasattr(part, "has_post_expert_norm"))
    x = torch.randn(21, SHAPE["hidden_size"]).to(dtype)
    index = torch.stack([torch.randperm(4)[:2] for _ in x])
    weights = torch.rand(21, 2).to(dtype)
    expected = module(x, index, weights)
    choose_experts(model, CPU)
    assert model.config._experts_implementation == CPU_EXPERTS_NAME
    rtol = 1e-4 if dtype == torch.float32 else 3e-2
    for many in (1000, 1):  # by the loop, and by torch's products
        monkeypatch.setitem(grouped._MANY, dtype, many)
        for count in (1, 4, 21):
            got = module(x[:count], index[:count], weights[:count])
            atol = rtol * float(expected.abs().max())
            torch.testing.assert_close(got, expected[:count], rtol=rtol, atol=atol)


def test_experts_that_a_loop_computes_otherwise_stay_transformers_own() -> None:
    model = random_model("mixtral", **{**SHAPE, **MIXTURES["mixtral"]})
    with patch.object(grouped, "grouped_experts", lambda _, x, *__: x):
        choose_experts(model, CPU)
    assert model.config._experts_implementation == "grouped_mm"

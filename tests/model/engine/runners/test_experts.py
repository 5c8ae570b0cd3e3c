"""Experts computed in one loop give what transformers' own ways give."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

from hf_triton.runtime.fused import experts as grouped
from hf_triton.text_generation.engines.in_flight.runner_selection import (
    CPU_EXPERTS_NAME,
    choose_experts,
)
from tests.support.tiny_models import random_model

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


def test_without_experts_a_model_is_left_as_it_is() -> None:
    choose_experts(random_model("llama", **SHAPE))


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
    choose_experts(model)
    assert model.config._experts_implementation == CPU_EXPERTS_NAME
    rtol = 1e-4 if dtype == torch.float32 else 3e-2
    for many in (1000, 1):  # by the loop, and by torch's products
        monkeypatch.setitem(grouped.MANY, dtype, many)
        for count in (1, 4, 21):
            got = module(x[:count], index[:count], weights[:count])
            atol = rtol * float(expected.abs().max())
            torch.testing.assert_close(got, expected[:count], rtol=rtol, atol=atol)


def test_experts_that_a_loop_computes_otherwise_stay_transformers_own() -> None:
    model = random_model("mixtral", **{**SHAPE, **MIXTURES["mixtral"]})
    with patch.object(grouped, "grouped_experts", lambda _, x, *__: x):
        choose_experts(model)
    assert model.config._experts_implementation == "grouped_mm"

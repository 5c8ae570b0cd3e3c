"""generate's tokens through the whole engine on the kernels, in OpenAI Triton's interpreter."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from text_generation.in_flight import runner_selection
from text_generation.in_flight.engine import InFlightEngine
from text_generation.kv.kv_cache import layer_shapes
from text_generation.kv.paged_cache import PagedCache, PagedSize

from tests.engine.driving import generate_all, running, setup
from tests.engine.tiny_models import Asked, mixed_load, reference, tiny_model

pytest.importorskip("triton")
from text_generation.gpu.attention import kernel_attention
from text_generation.gpu.joint_linear import JointLinear
from text_generation.gpu.runner import GpuFusedRunner

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"max_num_seqs": 3, "max_num_batched_tokens": 24, "max_model_len": 64}


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention by our kernel on a CPU."""
    monkeypatch.setattr(runner_selection, "select_attention", lambda *_: kernel_attention)


def load() -> list[Asked]:
    """Four prompts, one of three pages and more than a window; the last joins when one is done."""
    return [Asked(one.prompt, min(one.max_tokens, 6)) for one in mixed_load(4)]


def generated(model: Any, asked: Any) -> tuple[str, list[tuple[int, ...]]]:
    """The runner's name, and the tokens of prompts in chunks that join in mid-flight."""
    given = dataclasses.replace(setup(model, **SMALL), paged=True)
    with running(made := InFlightEngine(given)) as engine:
        return made.runner.name, generate_all(engine, asked, at_first=3)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_the_fused_runner_gives_the_tokens_of_generate(name: str) -> None:
    model, asked = tiny_model(name), load()
    expected = reference(model, asked)
    assert generated(model, asked) == ("fused", expected)


@pytest.mark.parametrize("name", ["gemma2", "phi3"])
def test_other_models_give_the_tokens_of_generate_on_the_attention_kernel(name: str) -> None:
    model, asked = tiny_model(name), load()
    expected = reference(model, asked)
    assert generated(model, asked) == ("paged", expected)


def fused(model: Any) -> GpuFusedRunner:
    shapes = layer_shapes(model, CPU)
    cache = PagedCache(shapes, PagedSize(8, 64, max_num_seqs=3, num_bytes=0))
    return GpuFusedRunner(model, cache, CPU)


def test_joined_weights_are_the_only_ones() -> None:
    model = tiny_model("qwen2")
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    num_bytes = stored_bytes(model.parameters())
    layers = [(layer.qkv, layer.gate_up) for layer in fused(model).decoder.layers]
    joint = [one for pair in layers for one in pair]
    assert all(isinstance(one, JointLinear) for one in joint)
    weights = [w for one in joint for w in (one.weight, one.bias) if w is not None]  # type: ignore[attr-defined]
    assert stored_bytes([*model.parameters(), *weights]) == num_bytes
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)
    again = [one for layer in fused(model).decoder.layers for one in (layer.qkv, layer.gate_up)]
    assert again == joint


def stored_bytes(tensors: Any) -> int:
    """Of memory that several may share."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def test_layers_that_are_not_plain_stay_apart() -> None:
    model = tiny_model("llama")
    attention = model.model.layers[0].self_attn
    attention.k_proj = torch.nn.Sequential(attention.k_proj)
    attention.k_proj.out_features = 16
    first, second = fused(model).decoder.layers
    assert not isinstance(first.qkv, JointLinear)
    assert isinstance(second.qkv, JointLinear)

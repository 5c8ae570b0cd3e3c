"""generate's tokens through the whole engine on the kernels, in OpenAI Triton's interpreter."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.engines.in_flight import runner_selection
from hf_triton.text_generation.engines.in_flight.engine import InFlightEngine
from hf_triton.text_generation.engines.in_flight.warm_up import dummy_sequence
from hf_triton.text_generation.forward.paged.runner import AdaptedPageRunner, PagedRunner
from hf_triton.text_generation.forward.paged.step import StepShape, lay_out_pages
from hf_triton.text_generation.lora.linear import Adapter, Adapters, attach
from hf_triton.text_generation.lora.rows import LowRank
from hf_triton.text_generation.memory.layer_shapes import layer_shapes
from hf_triton.text_generation.memory.paged_cache import PagedCache, PagedSize
from hf_triton.text_generation.memory.pages import Pages
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from tests.support.driving import generate_all, running, setup
from tests.support.tiny_models import Asked, mixed_load, reference, tiny_model

pytest.importorskip("triton")
from hf_triton.text_generation.forward.gpu.attention import kernel_attention
from hf_triton.text_generation.forward.gpu.runner import GpuFusedRunner, JointLinear

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


@pytest.mark.parametrize("name", ["mistral", "qwen3"])
def test_the_fused_runner_gives_the_tokens_of_generate(name: str) -> None:
    model, asked = tiny_model(name, num_hidden_layers=1), load()
    expected = reference(model, asked)
    assert generated(model, asked) == ("fused", expected)


def test_another_model_gives_the_tokens_of_generate_on_the_attention_kernel() -> None:
    model, asked = tiny_model("gemma2"), load()
    expected = reference(model, asked)
    assert generated(model, asked) == ("paged", expected)


def pages(model: Any) -> PagedCache:
    return PagedCache(layer_shapes(model, CPU), PagedSize(12, 64, max_num_seqs=16, num_bytes=0))


def fused(model: Any) -> GpuFusedRunner:
    return GpuFusedRunner(model, pages(model), CPU)


@pytest.mark.parametrize("num_seqs", [4, 16], ids=["fewer", "as many"])
def test_a_padded_step_gives_the_logits_of_its_tokens_and_adapters(num_seqs: int) -> None:
    """In a graph, fewer logits than tokens, or as many."""
    model = tiny_model("llama")
    adapters = two_adapters(model)
    attach(model, adapters)
    scheduler = Scheduler(16, max_num_batched_tokens=16, space=Pages(12, shares=False))
    params = SamplingParams(max_tokens=3)
    scheduler.add(dummy_sequence([*range(1, length)], params) for length in (6, 8))
    step = scheduler.schedule()
    step.inputs.adapters = [2, 1]
    plain, padded = lay_out_pages(step), lay_out_pages(step, StepShape(16, num_seqs, num_seqs))
    runner = AdaptedPageRunner(fused(model), adapters)
    with torch.inference_mode():
        got = runner.run(padded.to(CPU, runner.cache))[:2]
        eager = runner.run(plain.to(CPU, runner.cache))
        others = AdaptedPageRunner(PagedRunner(model, pages(model), CPU), adapters)
        expected = others.run(plain.to(CPU, others.cache))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(eager, expected, rtol=1e-4, atol=1e-4)


def two_adapters(model: Any) -> Adapters:
    random = torch.Generator().manual_seed(0)

    def change(name: str) -> LowRank:
        layer = model.get_submodule(name)
        down = torch.randn(4, layer.in_features, generator=random)
        return LowRank(down, torch.randn(layer.out_features, 4, generator=random))

    names = [
        f"model.layers.{i}.{part}"
        for i in range(2)
        for part in ("self_attn.q_proj", "mlp.down_proj")
    ]
    return Adapters(
        [Adapter(name, {each: change(each) for each in (*names, "lm_head")}) for name in "ab"]
    )


def test_joined_weights_are_the_only_ones() -> None:
    model = tiny_model("qwen2")
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.data.normal_()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    num_bytes = stored_bytes(model.parameters())
    layers = [(layer.attention.qkv, layer.up) for layer in fused(model).layers]
    joint = [one for pair in layers for one in pair]
    assert all(isinstance(one, JointLinear) for one in joint)
    weights = [w for one in joint for w in (one.weight, one.bias) if w is not None]  # type: ignore[attr-defined]
    assert stored_bytes([*model.parameters(), *weights]) == num_bytes
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)
    attention, x = model.model.layers[1].self_attn, torch.randn(3, 32)
    parts = [getattr(attention, name)(x) for name in ("q_proj", "k_proj", "v_proj")]
    torch.testing.assert_close(layers[1][0](x), torch.cat(parts, dim=-1))
    again = [one for layer in fused(model).layers for one in (layer.attention.qkv, layer.up)]
    assert again == joint


def stored_bytes(tensors: Any) -> int:
    """Of memory that several may share."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def test_layers_that_are_not_plain_stay_apart() -> None:
    model = tiny_model("llama")
    attention = model.model.layers[0].self_attn
    attention.k_proj.__class__ = type("OtherLinear", (torch.nn.Linear,), {})
    first, second = fused(model).layers
    assert not isinstance(first.attention.qkv, JointLinear)
    assert isinstance(second.attention.qkv, JointLinear)

"""The largest step finds room beside weights, cache and graphs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.engines.in_flight.largest_step import free_beside_steps
from hf_triton.text_generation.memory.kv_cache import CacheSize
from hf_triton.text_generation.memory.layer_shapes import layer_shapes
from hf_triton.text_generation.options import Options
from tests.model.gpu.fake.engine import engine_on
from tests.model.gpu.fake.gpu import GIB, FakeGpu
from tests.model.gpu.fake.models import LLAMA_2_7B, LLAMA_3_8B, causal_on_gpu
from tests.model.gpu.tiny_models import tiny_on_gpu

A10, A10_BYTES = (8, 6), 22 * GIB
NUM_LAYERS = 2


def bytes_of(model: Any) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def left_bytes(gpu: FakeGpu, config: dict[str, Any], **options: Any) -> int:
    """What is left at worst while a prompt as long as the cache takes is computed beside decodes.

    Of two layers, on a card that has so much less memory as the other layers' weights take: their
    cache is as large as that of all would be, and activations of a layer go with it.
    """
    model = causal_on_gpu("llama", **config)
    whole = bytes_of(model)
    del model
    model = causal_on_gpu("llama", **{**config, "num_hidden_layers": NUM_LAYERS})
    gpu.total_bytes -= whole - bytes_of(model)
    with engine_on(gpu, model, **{"max_num_seqs": None, "max_model_len": None, **options}) as fake:
        fake.step(*(fake.sequence(8, temperature=0.7, top_p=0.9) for _ in range(3)))
        longest = fake.sequence(fake.engine.max_model_len - 50)
        gpu.live.reset_peak()
        fake.step(longest)
        while longest.num_computed_tokens < longest.num_prompt_tokens:
            fake.step()
    return gpu.total_bytes - gpu.pool_bytes - gpu.live.peak


@pytest.mark.parametrize(
    "config, num_tokens",
    [(LLAMA_2_7B, None), (LLAMA_3_8B, 8192)],
    ids=["Llama-2-7B", "Llama-3.1-8B, long steps"],
)
def test_the_largest_step_fits_beside_the_cache(
    config: dict[str, Any], num_tokens: int | None
) -> None:
    with FakeGpu(A10, A10_BYTES) as gpu:
        left = left_bytes(gpu, config, max_num_batched_tokens=num_tokens)
    assert left >= 0, f"{-left / GIB:.2f} GiB too few"
    assert left < 0.1 * A10_BYTES, f"{left / GIB:.2f} GiB lie idle"


def test_a_step_that_finds_no_memory_at_all_is_told_at_load() -> None:
    def no_memory(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    options, factory = Options(max_num_batched_tokens=4096), RunnerSpec("none", no_memory)
    with FakeGpu() as gpu, engine_on(gpu, tiny_on_gpu("llama")) as fake:
        setup = replace(fake.engine.setup, options=options)
        with pytest.raises(LoadError, match=r"no memory for a step of 4096 tokens \(max_num_batch"):
            free_beside_steps(setup, [], factory, fake.engine.size)
        with pytest.raises(LoadError, match="no memory for the largest images or sounds of a pro"):
            free_beside_steps(setup, [], factory, fake.engine.size, encode=lambda: no_memory())


def test_what_the_largest_images_take_is_left_beside_the_cache() -> None:
    with FakeGpu() as gpu, engine_on(gpu, tiny_on_gpu("llama")) as fake:
        setup = fake.engine.setup
        shapes = layer_shapes(setup.model, setup.device)

        def logits(step: Step) -> torch.Tensor:
            return torch.empty(2**18, 97, device=setup.device)[: len(step.sampled)]

        def left(num_bytes: int) -> int:
            free = free_beside_steps(
                setup,
                shapes,
                RunnerSpec("none", lambda *_: SimpleNamespace(forward=logits)),
                CacheSize(3, 40, num_bytes=0),
                encode=lambda: torch.empty(num_bytes, dtype=torch.uint8, device=setup.device),
            )
            return free(setup.device)

        all_free, beside_steps = setup.free_bytes(setup.device), left(64)
        step_bytes = (all_free - beside_steps) // 2
        assert step_bytes >= 97 * 2**20
        assert left(2**28) == all_free - step_bytes - 2**28

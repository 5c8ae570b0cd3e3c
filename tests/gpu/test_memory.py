"""The largest step finds room beside weights, cache and graphs."""

from __future__ import annotations

from typing import Any

import pytest

from perf.gpu.fake.engine import engine_on
from perf.gpu.fake.gpu import GIB, FakeGpu
from perf.gpu.fake.models import LLAMA_2_7B, LLAMA_3_8B, causal_on_gpu

A10, A10_BYTES = (8, 6), 22 * GIB
NUM_LAYERS = 2


def bytes_of(model: Any) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def left_bytes(gpu: FakeGpu, config: dict[str, Any]) -> int:
    """What is left at worst while a prompt as long as the cache takes is computed beside decodes.

    Of two layers, on a card that has so much less memory as the other layers' weights take: their
    cache is as large as that of all would be, and activations of a layer go with it.
    """
    model = causal_on_gpu("llama", **config)
    whole = bytes_of(model)
    del model
    model = causal_on_gpu("llama", **{**config, "num_hidden_layers": NUM_LAYERS})
    gpu.total_bytes -= whole - bytes_of(model)
    with engine_on(gpu, model, max_num_seqs=None, max_model_len=None) as fake:
        fake.step(*(fake.sequence(8, temperature=0.7, top_p=0.9) for _ in range(3)))
        longest = fake.sequence(fake.engine.max_model_len - 50)
        gpu.live.reset_peak()
        fake.step(longest)
        while longest.num_computed_tokens < longest.num_prompt_tokens:
            fake.step()
    return gpu.total_bytes - gpu.pool_bytes - gpu.live.peak


@pytest.mark.parametrize("config", [LLAMA_2_7B, LLAMA_3_8B], ids=["Llama-2-7B", "Llama-3.1-8B"])
def test_the_largest_step_fits_beside_the_cache(config: dict[str, Any]) -> None:
    with FakeGpu(A10, A10_BYTES) as gpu:
        left = left_bytes(gpu, config)
    assert left >= 0, f"{-left / GIB:.2f} GiB too few"
    assert left < 0.1 * A10_BYTES, f"{left / GIB:.2f} GiB lie idle"

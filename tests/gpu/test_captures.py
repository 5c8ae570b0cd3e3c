"""What is captured: every packed architecture, with attention that was the same before the capture,
and no more kernels than this.
"""

from __future__ import annotations

from typing import Any

import pytest

from perf.gpu.fake.attention_backends import CUDNN, MATH
from perf.gpu.fake.engine import engine_on
from perf.gpu.fake.events import Log
from perf.gpu.fake.gpu import GIB, FakeGpu
from tests.engine.tiny_models import PACKED
from tests.gpu.tiny_models import tiny_on_gpu

pytestmark = pytest.mark.xfail(reason="steps over pages are not captured yet", strict=False)

H100, A10 = (9, 0), (8, 6)
# Of a captured decode step of the tiny model: its layers, embedding and head. They only fall.
KERNELS = {
    "gemma2": 188,
    "gemma3": 558,
    "gpt-neox": 77,
    "gpt2": 62,
    "llama": 111,
    "mistral": 114,
    "mixtral": 147,
    "opt": 51,
    "persimmon": 80,
    "phi": 93,
    "phi3": 117,
    "qwen2": 111,
    "qwen2-sliding": 118,
    "qwen3": 143,
}
KERNELS_A_LAYER = 44  # of Llama
# Runs eagerly there: the sizes of its experts' groups are read by the host.
NOT_CAPTURED = {("mixtral", A10)}
# Those whose kernels depend on the card; on both cards the others run the same operators.
ON_A10 = ("gemma2", "llama", "mistral", "mixtral")


def loaded_and_stepped(
    capability: tuple[int, int], name: str, **changes: Any
) -> tuple[FakeGpu, Log]:
    """The GPU after a load and some steps, and what the last one asked for."""
    with (
        FakeGpu(capability, 2 * GIB) as gpu,
        engine_on(gpu, tiny_on_gpu(name, **changes), max_num_batched_tokens=16) as fake,
    ):
        log = fake.decode_step(*(fake.sequence(20) for _ in range(3)))
    return gpu, log


def check(name: str, capability: tuple[int, int]) -> None:
    gpu, log = loaded_and_stepped(capability, name)
    assert bad_attention(gpu) == []
    assert warmed_up_otherwise(gpu) == []
    if (name, capability) in NOT_CAPTURED:
        assert gpu.problems
        return
    assert gpu.problems == []
    assert log.count("replay") == 1
    assert len(gpu.captures) >= 3
    most = max(len(capture.kernels) for capture in gpu.captures)
    assert most <= KERNELS[name], Log(gpu.captures[0].events).told("kernel")


def bad_attention(gpu: FakeGpu) -> list[str]:
    """Calls of attention that take far more memory than they need, or a plan for every shape."""
    return [f"{backend}: {call}" for call, backend, _ in gpu.attention if backend in (MATH, CUDNN)]


def warmed_up_otherwise(gpu: FakeGpu) -> list[str]:
    """Calls that were captured, and whose like was not run before: kernels are chosen, and their
    workspaces allocated, when a shape is first met, which a capture does not allow.
    """
    before = {call for call, _, is_captured in gpu.attention if not is_captured}
    return [str(call) for call, _, captured in gpu.attention if captured and call not in before]


@pytest.mark.parametrize("name", sorted(PACKED))
def test_every_packed_model_is_captured_on_an_h100(name: str) -> None:
    check(name, H100)


@pytest.mark.parametrize("name", ON_A10)
def test_models_of_each_kind_are_captured_on_an_a10(name: str) -> None:
    check(name, A10)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*PACKED} - {*ON_A10}))
def test_every_other_packed_model_is_captured_on_an_a10(name: str) -> None:
    check(name, A10)


def test_a_layer_of_a_captured_step_launches_no_more_kernels() -> None:
    numbers = []
    for num_layers in (1, 2):
        gpu, _ = loaded_and_stepped(H100, "llama", num_hidden_layers=num_layers)
        numbers.append(len(gpu.captures[0].kernels))
    assert numbers[1] - numbers[0] <= KERNELS_A_LAYER, Log(gpu.captures[0].events).told("kernel")

"""What is captured: each kind of packed architecture, with attention that was the same before the
capture, and no more kernels than this.
"""

from __future__ import annotations

from typing import Any

import pytest

from hf_triton.text_generation.forward.paged.graphs import GraphedRunner
from tests.model.gpu.fake.attention_backends import CUDNN, MATH, chosen_backend
from tests.model.gpu.fake.engine import engine_on
from tests.model.gpu.fake.events import Log
from tests.model.gpu.fake.gpu import GIB, FakeGpu
from tests.model.gpu.tiny_models import tiny_on_gpu

H100, A10 = (9, 0), (8, 6)
# Of a captured decode step of the tiny model: its layers, embedding and head. They only fall.
KERNELS = {
    "falcon-new": 63,
    "gemma2": 156,
    "gpt2": 51,
    "gptj": 91,
    "llama": 22,
    "mistral": 22,
    "mixtral": 138,
    "qwen3": 22,
}
STATE_KERNELS = {"lfm2": 113, "mamba2": 118}
# Beside the graph: token ids that are on the device alone are filled in, a token is chosen, and its
# score is looked at.
KERNELS_BESIDE = 13
LONG = {"max_position_embeddings": 1024}
# What depends on the card beside attention, whose kernels are told for both: experts and ours.
ON_H100 = ("llama", "mixtral")


def loaded_and_stepped(capability: tuple[int, int], name: str) -> tuple[FakeGpu, Log]:
    """The GPU after a load and some steps, and what the last one asked for; no attention may be
    bad.
    """
    with (
        FakeGpu(capability, 2 * GIB) as gpu,
        engine_on(gpu, tiny_on_gpu(name)) as fake,
    ):
        log = fake.decode_step(*(fake.sequence(20) for _ in range(3)))
        assert bad_attention(gpu) == []
    return gpu, log


def check(name: str, capability: tuple[int, int]) -> None:
    gpu, log = loaded_and_stepped(capability, name)
    assert warmed_up_otherwise(gpu) == []
    assert gpu.problems == []
    assert log.count("replay") == 1
    assert log.count("kernel") <= KERNELS_BESIDE, log.told("kernel")
    assert len(gpu.captures) == 4  # 1, 2 and 4 decodes, and 16 tokens with chunks
    assert decode_kernels(gpu) <= KERNELS[name]


def bad_attention(gpu: FakeGpu) -> list[str]:
    """Calls of attention that take far more memory than they need, or a plan for every shape, on
    either card.
    """
    return [
        f"{backend}: {call}"
        for call, *_ in gpu.attention
        for backend in {chosen_backend(call, capability) for capability in (H100, A10)}
        if backend in (MATH, CUDNN)
    ]


def warmed_up_otherwise(gpu: FakeGpu) -> list[str]:
    """What was captured, and its like was not run before: kernels are chosen, and their workspaces
    allocated, when a shape is first met, which a capture does not allow.
    """
    before = {call for call, _, is_captured in gpu.attention if not is_captured}
    attended = [str(call) for call, _, captured in gpu.attention if captured and call not in before]
    return gpu.first_met + attended


def decode_kernels(gpu: FakeGpu) -> int:
    """The kernels of a captured decode: the last capture, as the largest steps come first."""
    return len(gpu.captures[-1].kernels) if gpu.captures else 0


@pytest.mark.parametrize("name", KERNELS)
def test_a_packed_model_is_captured_on_an_a10(name: str) -> None:
    check(name, A10)


@pytest.mark.parametrize("name", ON_H100)
def test_models_whose_kernels_depend_on_the_card_are_captured_on_an_h100(name: str) -> None:
    check(name, H100)


@pytest.mark.parametrize("most, num_graphs", [(64, 7), (0, 0)])
def test_steps_that_a_mixture_computes_without_the_host_are_captured(
    most: int, num_graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, tried = GraphedRunner._record, list[int]()

    def record(self: Any, num_tokens: int, has_chunks: bool) -> Any:
        tried.append(num_tokens)
        if num_tokens > most:
            raise RuntimeError("a copy to the host while capturing")
        return own(self, num_tokens, has_chunks)

    monkeypatch.setattr(GraphedRunner, "_record", record)
    with FakeGpu(A10, 2 * GIB) as gpu:
        model = tiny_on_gpu("llama", **LONG)
        with engine_on(gpu, model, max_num_batched_tokens=512, max_model_len=600):
            assert len(gpu.captures) == num_graphs, tried
    assert len([number for number in tried if number > 64]) == 3


@pytest.mark.parametrize("name", sorted(STATE_KERNELS))
def test_decodes_of_models_with_states_are_captured(name: str) -> None:
    gpu, log = loaded_and_stepped(A10, name)
    assert warmed_up_otherwise(gpu) == []
    assert gpu.problems == []
    assert (log.count("replay"), log.count("wait")) == (1, 1)
    assert log.count("kernel") <= KERNELS_BESIDE, log.told("kernel")
    assert len(gpu.captures) == 3  # 1, 2 and 4 decodes
    assert decode_kernels(gpu) <= STATE_KERNELS[name]

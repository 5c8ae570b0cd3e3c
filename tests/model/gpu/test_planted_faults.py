"""Faults of the kind that only a GPU shows, planted one at a time: each must be found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

from hf_triton.text_generation.forward.gpu.runner import JointLinear
from hf_triton.text_generation.sampling.sampler import Sampler
from tests.model.gpu.fake.engine import engine_on
from tests.model.gpu.fake.gpu import GIB, FakeGpu
from tests.model.gpu.test_captures import (
    KERNELS,
    bad_attention,
    decode_kernels,
    warmed_up_otherwise,
)
from tests.model.gpu.test_decode_steps import BUDGET, budget_of
from tests.model.gpu.tiny_models import tiny_on_gpu


def before(kind: type, name: str, fault: Callable[[Any, torch.Tensor], object]) -> Any:
    """The method, which does something faulty to the tensors of its first argument first."""
    own = getattr(kind, name)

    def faulty(self: Any, *args: Any, **kwargs: Any) -> Any:
        fault(self, args[0])
        return own(self, *args, **kwargs)

    return faulty


def read_a_number(module: Any, states: torch.Tensor) -> None:
    states.max().item()


def copy_a_list(module: Any, states: torch.Tensor) -> None:
    torch.tensor([1, 2], device=states.device)


def index_by_a_mask(module: Any, states: torch.Tensor) -> None:
    states[states > 0]


def launch_one_more(module: Any, states: torch.Tensor) -> None:
    states + 1


def attend_with_groups_and_a_mask(module: Any, states: torch.Tensor) -> None:
    q = states.new_empty(1, 4, 8, 8)
    k = states.new_empty(1, 2, 8, 8)
    mask = torch.ones(8, 8, dtype=torch.bool, device=q.device)
    F.scaled_dot_product_attention(q, k, k, attn_mask=mask, enable_gqa=True)


def attend_otherwise_in_a_capture(module: Any, states: torch.Tensor) -> None:
    length = 9 if torch.cuda.is_current_stream_capturing() else 8
    q = states.new_empty(1, 4, length, 8)
    F.scaled_dot_product_attention(q, q, q)


def found_in(name: str) -> list[str]:
    """What the tests of this folder say of a load and a greedy decode step."""
    with (
        FakeGpu(total_bytes=2 * GIB) as gpu,
        engine_on(gpu, tiny_on_gpu(name), max_num_seqs=1) as fake,
    ):
        log = fake.decode_step(fake.sequence(10))
        found = [*gpu.problems, *bad_attention(gpu), *warmed_up_otherwise(gpu)]
    found += ["not replayed"] * (log.count("replay") != 1)
    found += ["over its budget"] * (not BUDGET.covers(budget_of(log)))
    return found + ["too many kernels"] * (decode_kernels(gpu) > KERNELS[name])


IN_A_LAYER = {
    "a number read by the host": (read_a_number, "wait item"),
    "a list copied to the device": (copy_a_list, "wait to, not pinned"),
    "an index by a mask": (index_by_a_mask, "wait nonzero"),
    "a kernel too many": (launch_one_more, "too many kernels"),
    "attention with groups and a mask": (attend_with_groups_and_a_mask, "math"),
    "other attention in a capture": (attend_otherwise_in_a_capture, "AttentionCall"),
}


@pytest.mark.parametrize("what", IN_A_LAYER)
def test_a_fault_in_a_layer_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, expected = IN_A_LAYER[what]
    monkeypatch.setattr(GPT2MLP, "forward", before(GPT2MLP, "forward", fault))
    found = found_in("gpt2")
    assert any(expected in one for one in found), found


def test_a_kernel_too_many_in_a_fused_layer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JointLinear, "__call__", before(JointLinear, "__call__", launch_one_more))
    assert found_in("llama") == ["too many kernels"]


def test_a_wait_in_sampling_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "launch", before(Sampler, "launch", read_a_number))
    assert found_in("gpt2") == ["over its budget"]

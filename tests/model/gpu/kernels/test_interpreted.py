"""The kernels for GPUs in OpenAI Triton's interpreter: what they read, take and refuse. What they
compute is held to float64 by ``perf gpu``'s own checks (tests/perf/lab/gpu).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")
from perf.lab.gpu.kernels.checks import SMALL_LAYERS, SMALL_STEPS
from perf.lab.gpu.kernels.steps import OPS, PLAIN, Layer, Rule, Step

SHAPE = (1, 1, 1, 5, 40), (33, 1, 130, 5, 100)


def step_of(layer: Layer = SMALL_LAYERS["groups of 2"], dtype: torch.dtype = torch.float32) -> Step:
    return Step(*SHAPE, layer, dtype, torch.device("cpu"))


@pytest.mark.parametrize("rule", [PLAIN, Rule(window=9, has_sinks=True)], ids=["all", "window"])
def test_attention_reads_no_key_twice_and_none_that_it_does_not_need(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    step = step_of(dtype=torch.float16)  # each chunk is one tile
    first, bytes_read = step.keys.data_ptr(), 0
    last = first + step.keys.nbytes
    load = InterpreterBuilder.create_masked_load

    def counted(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        nonlocal bytes_read
        addresses = pointers.data[mask.data]
        bytes_read += 2 * int(((addresses >= first) & (addresses < last)).sum())
        return load(self, pointers, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted)
    step.attend(rule)
    needed = 0
    for queries, length in zip(*SHAPE, strict=True):
        needed += min(length, rule.window + queries - 1) if rule.window else length
    row_bytes = step.layer.kv_heads * step.layer.key_dim * 2
    assert needed * row_bytes <= bytes_read <= 1.1 * needed * row_bytes


def test_queries_may_lie_head_by_head() -> None:
    step = step_of(SMALL_LAYERS["groups of 3"])
    expected = step.attend()
    step.q = step.q.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(step.attend(), expected, rtol=0, atol=0)


def test_fake_tensors_have_the_shapes_of_true_ones() -> None:
    counts_and_lengths, layer = SMALL_STEPS["mixed"], SMALL_LAYERS["wide keys"]
    step = Step(*counts_and_lengths, layer, torch.bfloat16, torch.device("cpu"))

    def computed() -> list[torch.Tensor]:
        normed = OPS.add_rms_norm(torch.ones(3, 64), None, torch.ones(64), 1e-5)
        return [step.attend(), OPS.silu_mul(torch.zeros(3, 64)), normed]

    true = computed()
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = computed()
    assert [(x.shape, x.dtype) for x in fake] == [(x.shape, x.dtype) for x in true]


@pytest.mark.parametrize("num_seqs, kv_heads, splits", [(1, 8, 32), (8, 8, 4), (64, 8, 1)])
def test_few_decodes_are_split_over_the_card(num_seqs: int, kv_heads: int, splits: int) -> None:
    from hf_triton.text_generation.forward.gpu.launching import Card, num_splits

    assert num_splits(num_seqs, kv_heads, Card((9, 0), 132)) == splits


def test_pages_of_another_size_are_refused() -> None:
    step = step_of(SMALL_LAYERS["tiny"])
    num_pages = len(step.keys)
    step.keys = step.keys.view(2 * num_pages, 8, 2, 8)
    expected = rf"pages of \({2 * num_pages}, 8, 2, 8\).*expected \(num_pages, 16"
    with pytest.raises(ValueError, match=expected):
        step.attend()

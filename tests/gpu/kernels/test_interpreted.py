"""The kernels for GPUs in OpenAI Triton's interpreter, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.gpu.kernels.cases import TOLERANCE, Case, Inputs, error

pytest.importorskip("triton")
import hf_triton.text_generation.gpu.ops  # noqa: F401

OPS = torch.ops.hf_triton
DTYPES = list(TOLERANCE)
DECODES = {"query_lens": (1, 1, 1, 1), "lengths": (17, 200, 0, 64)}
CASES = {
    "group-1": Case(4, 4, 64, 64),
    "group-3": Case(6, 2, 64, 64),
    "group-4": Case(8, 2, 128, 128),
    "group-8": Case(8, 1, 80, 80),
    "window": Case(4, 2, 64, 64, window=20),
    "narrow-window": Case(4, 2, 64, 64, window=1),
    "softcap": Case(4, 2, 64, 64, softcap=2.0),
    "sinks": Case(6, 2, 64, 64, window=9, has_sinks=True),
    "wide-keys": Case(2, 2, 192, 128),
    "tiny": Case(4, 2, 8, 8),
    "decodes": Case(8, 4, 96, 96, **DECODES),  # type: ignore[arg-type]
    "one-decode": Case(8, 4, 64, 64, query_lens=(1,), lengths=(300,)),
    "one-prompt": Case(8, 4, 64, 64, query_lens=(70,), lengths=(70,)),
}
ROWS = 5
# The interpreter cuts off what bfloat16 does not hold, where a GPU rounds.
ROUNDED = {torch.float32: 0.0, torch.float16: 0.0, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_paged_attention_is_that_of_float64(case: Case, dtype: torch.dtype) -> None:
    inputs = Inputs(case, dtype)
    assert error(inputs.attend(), inputs.expected()) < TOLERANCE[dtype]


@pytest.mark.parametrize("case", [Case(4, 2, 64, 64), CASES["sinks"]], ids=["all", "window"])
def test_attention_reads_no_key_twice_and_none_that_it_does_not_need(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    inputs = Inputs(case, torch.float16)  # each chunk is one tile
    first, bytes_read = inputs.keys.data_ptr(), 0
    last = first + inputs.keys.nbytes
    load = InterpreterBuilder.create_masked_load

    def counted(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        nonlocal bytes_read
        addresses = pointers.data[mask.data]
        bytes_read += 2 * int(((addresses >= first) & (addresses < last)).sum())
        return load(self, pointers, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted)
    inputs.attend()
    needed = 0
    for queries, length in zip(case.query_lens, case.lengths, strict=True):
        needed += min(length, case.window + queries - 1) if case.window else length
    row_bytes = case.kv_heads * case.key_dim * 2
    assert needed * row_bytes <= bytes_read <= 1.1 * needed * row_bytes


def test_queries_may_lie_head_by_head() -> None:
    inputs = Inputs(CASES["group-3"], torch.float32)
    expected = inputs.attend()
    inputs.q = inputs.q.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(inputs.attend(), expected, rtol=0, atol=0)


def test_attention_depends_on_no_page_beyond_a_sequence() -> None:
    inputs = Inputs(CASES["group-1"], torch.float32)
    expected = inputs.attend()
    used = set(inputs.pages.tolist())
    others = [page for page in range(len(inputs.keys)) if page not in used]
    inputs.keys[others], inputs.values[others] = float("nan"), float("nan")
    last = int(inputs.pages[int(inputs.first_page[1])])  # of a sequence of one token
    inputs.keys[last, 1:], inputs.values[last, 1:] = float("nan"), float("nan")
    torch.testing.assert_close(inputs.attend(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_norm_is_of_the_rounded_sum(dtype: torch.dtype) -> None:
    hidden, delta = torch.randn(2, ROWS, 96).to(dtype)
    weight = torch.randn(96).to(dtype)
    total = hidden + delta
    expected = F.rms_norm(total.double(), (96,), weight.double(), 1e-5)
    got = OPS.add_rms_norm(hidden, delta, weight, 1e-5)
    assert error(got, expected) < TOLERANCE[dtype]
    torch.testing.assert_close(hidden, total, rtol=ROUNDED[dtype], atol=0)
    before = hidden.clone()
    again = OPS.add_rms_norm(hidden, None, weight, 1e-5)
    torch.testing.assert_close(again, got, rtol=0, atol=0)
    torch.testing.assert_close(hidden, before, rtol=0, atol=0)


def rotated(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """states (tokens, heads, dim) by cos and sin (tokens, rotary dim), as transformers does."""
    size = cos.shape[1]
    turned, rest = states[..., :size], states[..., size:]
    halves = torch.cat([-turned[..., size // 2 :], turned[..., : size // 2]], dim=-1)
    return torch.cat([turned * cos[:, None] + halves * sin[:, None], rest], dim=-1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "heads, kv_heads, dim, rotary, has_norms",
    [(4, 2, 64, 64, False), (6, 2, 80, 32, False), (8, 1, 128, 128, True), (3, 3, 80, 20, True)],
)
def test_queries_and_keys_are_rotated_and_stored(
    heads: int, kv_heads: int, dim: int, rotary: int, has_norms: bool, dtype: torch.dtype
) -> None:
    qkv = torch.randn(ROWS, (heads + 2 * kv_heads) * dim).to(dtype)
    angles = torch.randn(20, rotary // 2).repeat(1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    norms = torch.cat([torch.randn(2, dim), torch.ones(1, dim)]).to(dtype) if has_norms else None
    rows, positions = torch.tensor([33, 1, 0, 70, 16]).int(), torch.tensor([5, 19, 0, 2, 7]).int()
    keys, values = torch.zeros(2, 5, 16, kv_heads, dim).to(dtype)

    q, k, v = qkv.double().unflatten(1, (-1, dim)).split([heads, kv_heads, kv_heads], dim=1)
    if norms is not None:
        q, k = (F.rms_norm(x, (dim,), norms[i].double(), 1e-5) for i, x in enumerate((q, k)))
    turn = cos[positions].double(), sin[positions].double()
    expected_keys, expected_values = torch.zeros(2, 80, kv_heads, dim, dtype=torch.float64)
    expected_keys[rows], expected_values[rows] = rotated(k, *turn), v

    OPS.rotate_and_store(qkv, keys, values, rows, positions, cos, sin, norms, 1e-5)
    got = qkv[:, : heads * dim].unflatten(1, (heads, dim))
    assert error(got, rotated(q, *turn)) < TOLERANCE[dtype]
    assert error(keys.flatten(0, 1), expected_keys) < TOLERANCE[dtype]
    assert error(values.flatten(0, 1), expected_values) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_mul(dtype: torch.dtype) -> None:
    gate_up = torch.randn(ROWS, 2 * 1100).to(dtype) * 3
    gate_up[0, 0] = -200  # whose exponential is infinite
    gate, up = gate_up.double().chunk(2, dim=1)
    assert error(OPS.silu_mul(gate_up), F.silu(gate) * up) < TOLERANCE[dtype]


def test_fake_tensors_have_the_shapes_of_true_ones() -> None:
    inputs = Inputs(CASES["wide-keys"], torch.bfloat16)
    true = (inputs.attend(), OPS.silu_mul(torch.zeros(3, 64)), *_normed())
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = (inputs.attend(), OPS.silu_mul(torch.zeros(3, 64)), *_normed())
    assert [(x.shape, x.dtype) for x in fake] == [(x.shape, x.dtype) for x in true]


def _normed() -> tuple[torch.Tensor, ...]:
    hidden = torch.ones(3, 64)
    return (OPS.add_rms_norm(hidden, None, torch.ones(64), 1e-5),)


@pytest.mark.parametrize("num_seqs, kv_heads, splits", [(1, 8, 32), (8, 8, 4), (64, 8, 1)])
def test_few_decodes_are_split_over_the_card(num_seqs: int, kv_heads: int, splits: int) -> None:
    from hf_triton.text_generation.gpu.launching import Card, num_splits

    assert num_splits(num_seqs, kv_heads, Card((9, 0), 132)) == splits


def test_pages_of_another_size_are_refused() -> None:
    inputs = Inputs(CASES["tiny"], torch.float32)
    inputs.keys = inputs.keys.view(80, 8, 2, 8)
    with pytest.raises(ValueError, match=r"pages of \(80, 8, 2, 8\).*expected \(num_pages, 16"):
        inputs.attend()

"""Replaces on a CPU what only GPUs have: torch's ``varlen_attn``, pages of 256 tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.attention import varlen

from hf_triton.text_generation.engines.in_flight import runner_selection
from hf_triton.text_generation.forward.paged.attention import Attend, plain_attention
from hf_triton.text_generation.forward.paged.attention_selection import (
    TOLERANCE,
    AttentionCase,
    difference,
    varlen_attention,
)
from hf_triton.text_generation.memory.pages import PAGE_SIZES

CPU = torch.device("cpu")


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    num_splits: int | None,
) -> torch.Tensor:
    """torch's with FlashAttention 2, sequence by sequence in float32 at least. It refuses what
    mha_varlen_fwd of aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp refuses.
    """
    (tokens, heads, dim), (_, page_size, kv_heads, _) = query.shape, key.shape
    num_seqs, group = len(seqused_k), heads // kv_heads
    if page_size % 256:
        raise RuntimeError("Paged KV cache block size must be divisible by 256")
    if dim % 8 or dim > 256 or value.shape != key.shape:
        raise RuntimeError("heads of keys and values alike, of a multiple of 8 up to 256 numbers")
    assert {one.dtype for one in (cu_seq_q, cu_seq_k, seqused_k, block_table)} == {torch.int32}
    assert len(cu_seq_q) == len(cu_seq_k) == len(block_table) + 1 == num_seqs + 1
    assert enable_gqa
    assert torch.equal(cu_seq_k[: num_seqs + 1].diff(), seqused_k)
    assert int(seqused_k.max()) <= max_k <= block_table.shape[1] * page_size
    out = torch.full_like(query, torch.nan)
    if max_q == 1 and group > 1 and window_size == (-1, -1):
        assert tokens == num_seqs, "heads stand for tokens: each sequence has one"
    elif num_splits != 1:
        return out  # https://github.com/pytorch/pytorch/issues/194167
    for number, length in enumerate(seqused_k.tolist()):
        first, end = cu_seq_q[number : number + 2].tolist()
        assert end - first <= max_q
        pages = block_table[number].long()
        k, v = (x[pages].flatten(0, 1)[:length].repeat_interleave(group, 1) for x in (key, value))
        columns = torch.arange(length)
        at = columns[length - (end - first) :, None]
        left, right = window_size
        hidden = (columns > at + right) if right >= 0 else torch.zeros(len(at), length).bool()
        hidden |= (columns < at - left) if left >= 0 else False
        scores = torch.einsum("qhd,khd->hqk", query[first:end].float(), k.float()) * scale
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[first:end] = torch.einsum("hqk,khd->qhd", weights, v.float()).to(out.dtype)
    return out


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines over pages take pages of 256 tokens, and ``varlen_attn`` where it agrees."""

    def select(cases: Callable[[], set[AttentionCase]], device: torch.device) -> Attend:
        found = cases()
        try:
            for case in found:
                assert difference(varlen_attention, case, device) <= TOLERANCE[case.dtype]
        except NotImplementedError:
            return plain_attention
        return varlen_attention if found else plain_attention

    monkeypatch.setitem(PAGE_SIZES, "cpu", 256)
    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    monkeypatch.setattr(runner_selection, "select_attention", select)

"""The kernels as operators of torch, ``torch.ops.hf_triton``.

Each has an implementation for CUDA, one for the CPU (OpenAI Triton's interpreter: for tests) and
one for FakeTensors. Importing this module defines them; a first call imports OpenAI Triton.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch

from hf_triton.text_generation.memory.pages import PAGE_SIZE

from .launching import (
    AttentionShape,
    Launch,
    attention_launch,
    card_of,
    draw_launch,
    join_launch,
    launch,
    norm_launch,
    num_splits,
    rotary_launch,
    silu_launch,
)

_LIBRARY = torch.library.Library("hf_triton", "DEF")


@cache
def _attention_kernels() -> ModuleType:
    from . import attention_kernels

    return attention_kernels


@cache
def _row_kernels() -> ModuleType:
    from . import row_kernels

    return row_kernels


@cache
def _sampling_kernels() -> ModuleType:
    from . import sampling_kernels

    return sampling_kernels


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    first_page: torch.Tensor,
    pages: torch.Tensor,
    max_query_len: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Causal attention of each token to its own sequence: q (T, heads, key_dim), keys and values
    (num_pages, 16, kv_heads, dim) -> (T, heads, value_dim).

    Sequence s is the tokens starts[s] .. starts[s+1]-1, the last of the lengths[s] tokens whose
    keys lie in the pages from pages[first_page[s]] on; where that is 0, zeros. All int32. No
    sequence has more than ``max_query_len`` tokens here: 1 saves the kernel for longer ones.
    ``window`` and ``softcap`` are 0 where there is none; ``sinks`` (heads,) is a score of each head
    that takes part in the softmax and has no value.
    """
    _check_attention(q, keys, values)
    num_tokens, heads, key_dim = q.shape
    kv_heads, value_dim = values.shape[2:]
    num_seqs, card = lengths.shape[0], card_of(q.device)
    shape = AttentionShape(heads, kv_heads, key_dim, value_dim, q.element_size())
    splits = num_splits(num_seqs, kv_heads, card)
    out = q.new_empty(num_tokens, heads, value_dim)
    kernels = _attention_kernels()

    def attend(grid: tuple[int, ...], how: Launch, *parts: torch.Tensor) -> None:
        launch(
            *(kernels.paged_attention, grid, how, q, keys, values, out),
            *(parts or (out, out)),  # which are not read
            *(out if sinks is None else sinks, starts, lengths, first_page, pages),
            *(num_seqs, splits, scale, q.stride(0), q.stride(1)),
            IS_SPLIT=bool(parts),
            WINDOW=window,
            SOFTCAP=softcap,
            HAS_SINKS=sinks is not None,
            # The interpreter has no products of bfloat16.
            UPCAST=q.device.type == "cpu" and q.dtype == torch.bfloat16,
        )

    decode = attention_launch(shape, card, is_decode=True)
    if splits > 1:
        parts = q.new_empty(num_seqs, splits, heads, value_dim, dtype=torch.float32)
        lse = q.new_empty(num_seqs, splits, heads, dtype=torch.float32)
        attend((num_seqs, kv_heads, splits), decode, parts, lse)
        join = join_launch(shape, splits)
        launch(kernels.join_splits, (num_seqs, heads), join, parts, lse, out, starts)
    else:
        attend((num_seqs, kv_heads, 1), decode)
    if max_query_len > 1:
        how = attention_launch(shape, card, is_decode=False)
        block_q = how.constants["BLOCK_M"] // shape.group
        attend((num_tokens // block_q + num_seqs, kv_heads, 1), how)
    return out


def _check_attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Raises ValueError for what the kernel would read at wrong addresses."""
    for stored in (keys, values):
        if stored.shape[1] != PAGE_SIZE or not stored.is_contiguous() or stored.dtype != q.dtype:
            raise ValueError(
                f"pages of {tuple(stored.shape)}, {stored.dtype}, strided {stored.stride()}: "
                f"expected (num_pages, {PAGE_SIZE}, kv_heads, dim), {q.dtype}, contiguous"
            )
    if q.stride(2) != 1 or q.shape[2] != keys.shape[3]:
        raise ValueError(
            f"queries of {tuple(q.shape)}, strided {q.stride()}: expected heads of "
            f"{keys.shape[3]} numbers that follow each other"
        )


def _fake_paged_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *_: object
) -> torch.Tensor:
    return q.new_empty(q.shape[0], q.shape[1], values.shape[3])


def add_rms_norm(
    hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Adds delta to hidden (T, size) in place -> its RMSNorm, hidden / sqrt(mean(hidden^2) + eps)
    * weight.
    """
    num_tokens, size = hidden.shape
    out = torch.empty_like(hidden)
    arguments = (hidden, hidden if delta is None else delta, weight, out, eps)
    has_delta = delta is not None
    launch(
        *(_row_kernels().add_rms_norm, (num_tokens,), norm_launch(size), *arguments),
        HAS_DELTA=has_delta,
    )
    return out


def _fake_add_rms_norm(hidden: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(hidden)


def rotate_and_store(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norms: torch.Tensor | None,
    eps: float,
) -> None:
    """Rotates queries and keys of qkv (T, (heads + 2 kv_heads) * dim) by their positions, and
    writes keys and values to ``rows`` of the pages (num_pages, 16, kv_heads, dim); of qkv only the
    queries are of use after that.

    rows (page * 16 + offset) and positions (T,) are int32; cos and sin (max_model_len, rotary dim)
    have like halves: the first and the second half of the rotary dim turn together. norms (3, dim):
    the weights of the queries' RMSNorm and of the keys', and ones, where they are normalised first.
    """
    num_tokens, kv_heads, dim = len(qkv), keys.shape[2], keys.shape[3]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    how = rotary_launch(heads, kv_heads, dim, cos.shape[1])
    grid = (num_tokens, -(-(heads + 2 * kv_heads) // how.constants["BLOCK_H"]))
    tensors = (qkv, keys, values, rows, positions, cos, sin, qkv if norms is None else norms)
    kernel = _row_kernels().rotate_and_store
    launch(kernel, grid, how, *tensors, eps, HAS_NORMS=norms is not None)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up (T, 2 * size), gates first -> silu(gate) * up, (T, size)."""
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(num_tokens, size)
    how = silu_launch(size)
    grid = (num_tokens, -(-size // how.constants["BLOCK"]))
    launch(_row_kernels().silu_mul, grid, how, gate_up, out)
    return out


def _fake_silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


def draw(
    logits: torch.Tensor,
    rows: torch.Tensor,
    numbers: torch.Tensor,
    top_k: torch.Tensor,
    token_ids: torch.Tensor,
) -> None:
    """Draws a token from each of ``rows`` (drawn,) of logits (R, vocab) into token_ids (R,), as
    sampling/random_sampling.py does.

    numbers (4, drawn) float32: temperatures, uniform numbers, top_p, min_p; top_k (drawn,) int64,
    as rows and token_ids are. Filters are 0 where they are off.
    """
    logits, drawn = logits.contiguous(), len(rows)
    tensors = (logits, rows, numbers, top_k, token_ids)
    how = draw_launch(logits.shape[1])
    launch(_sampling_kernels().draw, (drawn,), how, *tensors, logits.shape[1], drawn)


def _fake_in_place(*_: object) -> None:
    """Nothing is given back."""


# Each function, what it changes in place, and what it is on FakeTensors.
_OPERATORS = (
    (paged_attention, (), _fake_paged_attention),
    (add_rms_norm, ("hidden",), _fake_add_rms_norm),
    (rotate_and_store, ("qkv", "keys", "values"), _fake_in_place),
    (silu_mul, (), _fake_silu_mul),
    (draw, ("token_ids",), _fake_in_place),
)


def _define() -> None:
    for function, changed, fake in _OPERATORS:
        name = function.__name__
        _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=changed))
        _LIBRARY.impl(name, function, "CUDA")
        _LIBRARY.impl(name, function, "CPU")
        torch.library.register_fake(f"hf_triton::{name}", fake, lib=_LIBRARY)


_define()

"""Which kernel scaled_dot_product_attention takes on a GPU, by the rules of torch 2.13's
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.h, for dense tensors of a
forward without dropout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FLASH, EFFICIENT, CUDNN, MATH = "flash", "efficient", "cudnn", "math"
_HALF = (torch.float16, torch.bfloat16)
_FLASH_WIDEST, _CUDNN_WIDEST = 256, 128


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of one call of scaled_dot_product_attention."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    strides: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    offset_bytes: tuple[int, int, int]
    dtype: torch.dtype
    mask: tuple[int, ...] | None
    mask_dtype: torch.dtype | None
    mask_strides: tuple[int, ...] | None
    is_causal: bool
    enable_gqa: bool

    @property
    def mask_bytes(self) -> int:
        """What the mask takes in the query's dtype, as mem-efficient attention needs it."""
        if self.mask is None:
            return 0
        rows = (1, 1, *self.mask)[-4:]
        return rows[0] * rows[1] * rows[2] * rows[3] * self.dtype.itemsize


def attention_call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall:
    """The record of a call; the signature is torch's own."""
    assert dropout_p == 0, "a served model drops nothing"
    tensors = (query, key, value)
    return AttentionCall(
        tuple(query.shape),
        tuple(key.shape),
        tuple(value.shape),
        (query.stride(), key.stride(), value.stride()),
        tuple(t.storage_offset() * t.element_size() for t in tensors),  # type: ignore[arg-type]
        query.dtype,
        None if attn_mask is None else tuple(attn_mask.shape),
        None if attn_mask is None else attn_mask.dtype,
        None if attn_mask is None else attn_mask.stride(),
        is_causal,
        enable_gqa,
    )


def chosen_backend(call: AttentionCall, capability: tuple[int, int]) -> str:
    """The backend that select_sdp_backend takes: cuDNN first on Hopper and data-centre Blackwell
    (check_prefer_cudnn_attention, with cuDNN 9.15.1 or later), else flash, mem-efficient, math.
    """
    fitting = {
        CUDNN: torch.backends.cuda.cudnn_sdp_enabled() and _fits_cudnn(call, capability),
        FLASH: torch.backends.cuda.flash_sdp_enabled() and _fits_flash(call, capability),
        EFFICIENT: torch.backends.cuda.mem_efficient_sdp_enabled() and _fits_efficient(call),
        MATH: True,
    }
    prefers_cudnn = capability[0] in (9, 10)
    order = (CUDNN, FLASH, EFFICIENT, MATH) if prefers_cudnn else (FLASH, EFFICIENT, MATH)
    return next(backend for backend in order if fitting[backend])


def _fits_flash(call: AttentionCall, capability: tuple[int, int]) -> bool:
    widths = {call.query[-1], call.key[-1], call.value[-1]}
    return (
        _is_dense(call)
        and capability >= (8, 0)
        and call.mask is None
        and call.dtype in _HALF
        and len(widths) == 1
        and widths.pop() <= _FLASH_WIDEST
        and not (call.is_causal and call.query[-2] != call.key[-2])
        and _heads_fit(call, grouped=True)
    )


def _fits_efficient(call: AttentionCall) -> bool:
    """With heads of its own for each query head: 2.13's kernel takes no groups. Head sizes and
    offsets are multiples of 16 bytes (minimum_gemm_alignment on tensor cores).
    """
    multiple = 16 // call.dtype.itemsize
    return (
        _is_dense(call)
        and call.dtype in (*_HALF, torch.float32)
        and call.query[-1] == call.key[-1]
        and call.query[-1] % multiple == 0
        and call.value[-1] % multiple == 0
        and all(offset % 16 == 0 for offset in call.offset_bytes)
        and _heads_fit(call, grouped=False)
    )


def _fits_cudnn(call: AttentionCall, capability: tuple[int, int]) -> bool:
    widest = max(call.query[-1], call.value[-1])
    return (
        _is_dense(call)
        and capability >= (8, 0)
        and call.dtype in _HALF
        and widest <= _CUDNN_WIDEST
        and call.query[-1] % 8 == 0
        and call.value[-1] % 8 == 0
        and call.key[-2] != 1
        and _mask_fits(call)
        and _heads_fit(call, grouped=True)
    )


def _is_dense(call: AttentionCall) -> bool:
    """Four dimensions, none of the lengths 0, last dimensions contiguous."""
    strides = (*call.strides, *((call.mask_strides,) if call.mask_strides else ()))
    return (
        {len(call.query), len(call.key), len(call.value)} == {4}
        and call.query[-2] > 0
        and call.key[-2] > 0
        and all(stride[-1] == 1 for stride in strides)
    )


def _heads_fit(call: AttentionCall, *, grouped: bool) -> bool:
    """check_batch_size_and_num_heads_dense."""
    if len({call.query[0], call.key[0], call.value[0]}) > 1:
        return False
    heads, key_heads, value_heads = call.query[1], call.key[1], call.value[1]
    if call.enable_gqa and grouped:
        return key_heads == value_heads and heads % key_heads == 0
    return heads == key_heads == value_heads


def _mask_fits(call: AttentionCall) -> bool:
    """check_attn_mask_shape: two or four dimensions that broadcast."""
    if call.mask is None:
        return True
    wanted = (*call.query[:-1], call.key[-2])[-len(call.mask) :]
    return len(call.mask) in (2, 4) and all(
        size in (1, full) for size, full in zip(call.mask, wanted, strict=True)
    )

"""Checks a decoder's sizes, dtypes and layouts before the kernels read and write at addresses."""

from __future__ import annotations

import torch

from hf_triton.runtime.fused.parts import UnsupportedLayersError
from hf_triton.runtime.fused.sizes import check_body

from .decoder import Decoder


@torch.inference_mode()
def check_sizes(
    decoder: Decoder, stored: list[torch.Tensor], kv_heads: int, length: int, dtype: torch.dtype
) -> None:
    """Checks every layer against the others, ``stored``, which are all keys and values
    (..., head dim) of sequences of ``length`` tokens, and ``dtype``.

    Raises:
        UnsupportedLayersError: one does not fit.
    """
    shape = stored[0].shape
    if len(stored) != 2 * len(decoder.layers):
        raise UnsupportedLayersError("not every layer keeps keys and values")
    if any(one.shape != shape or one.dtype != dtype for one in stored):
        raise UnsupportedLayersError("its keys and values differ in size")
    check_body(decoder, (kv_heads, shape[-1], length), dtype)
    if len({layer.attention.num_heads for layer in decoder.layers}) > 1:
        raise UnsupportedLayersError("its layers differ in the number of heads")
    if any(layer.norms_sums for layer in decoder.layers):
        raise UnsupportedLayersError("it norms sums")

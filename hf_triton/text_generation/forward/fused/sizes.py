"""Checks a decoder's sizes, dtypes and layouts before the kernels read and write at addresses."""

from __future__ import annotations

import torch

from hf_triton.runtime.fused.parts import UnsupportedLayersError
from hf_triton.runtime.fused.sizes import ROWS, check_layer, check_norm, rows_of

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
    shape, dim = stored[0].shape, stored[0].shape[-1]
    if len(stored) != 2 * len(decoder.layers):
        raise UnsupportedLayersError("not every layer keeps keys and values")
    if any(one.shape != shape or one.dtype != dtype for one in stored):
        raise UnsupportedLayersError("its keys and values differ in size")
    token_ids = torch.zeros(ROWS, dtype=torch.int64, device=decoder.norm.weight.device)
    hidden = rows_of(decoder.embed, token_ids, dtype)
    check_norm(decoder.norm, hidden.shape[1])
    positions = decoder.positions
    if positions is not None and (positions.shape[0] < length or positions.dtype != dtype):
        raise UnsupportedLayersError(f"it has {len(positions)} positions for {length} tokens")
    for layer in decoder.layers:
        if layer.attention.num_heads != decoder.layers[0].attention.num_heads:
            raise UnsupportedLayersError("its layers differ in the number of heads")
        if layer.norms_sums:
            raise UnsupportedLayersError("it norms sums")
        check_layer(layer, hidden, (kv_heads, dim, length))

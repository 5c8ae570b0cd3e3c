"""Checks an encoder's sizes, dtypes and layouts before the kernels read and write at addresses."""

from __future__ import annotations

import torch

from hf_triton.runtime.fused.parts import UnsupportedLayersError
from hf_triton.runtime.fused.sizes import ROWS, check_layer, check_norm, rows_of

from .attention import COLUMNS
from .encoder import Encoder


@torch.inference_mode()
def check_sizes(encoder: Encoder, length: int, dtype: torch.dtype) -> None:
    """Checks all layers for texts of ``length`` tokens in ``dtype``.

    Raises:
        UnsupportedLayersError: one does not fit, or computes what the kernels do not.
    """
    embedding = encoder.embedding
    hidden = rows_of(embedding.tokens, torch.zeros(ROWS, dtype=torch.int64), dtype)
    for table in (embedding.positions, embedding.types):
        if table is not None and (table.dtype != dtype or table.shape[1] != hidden.shape[1]):
            raise UnsupportedLayersError(f"a table of {tuple(table.shape)} in {table.dtype}")
    check_norm(embedding.norm, hidden.shape[1])
    if embedding.projection is not None:
        hidden = rows_of(embedding.projection, hidden, dtype)
    check_norm(encoder.norm, hidden.shape[1])
    for layer in encoder.layers:
        attention = layer.attention
        if attention.softcap or attention.sinks is not None or attention.is_interleaved:
            raise UnsupportedLayersError("its attention changes scores, or is interleaved")
        bias = attention.bias
        if bias is not None and bias.shape != (attention.num_heads, 2 * length - 1):
            raise UnsupportedLayersError(f"a position bias of {tuple(bias.shape)}")
        for table in (attention.relative_keys, attention.relative_queries):
            width = 2 * (length - 1 + COLUMNS) + 1
            wanted = attention.num_heads, encoder.dim, width
            if table is not None and (table.shape != wanted or not table.is_contiguous()):
                raise UnsupportedLayersError(f"relative positions of {tuple(table.shape)}")
        check_layer(layer, hidden, (encoder.kv_heads, encoder.dim, length))

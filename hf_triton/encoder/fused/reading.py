"""Reads a transformers model as an encoder, from one recorded forward of a few tokens.

Every part is held against what the model computed in that forward. Whether the whole is right shows
in the trial of runners/runner.py.
"""

from __future__ import annotations

from typing import Any

import torch

from hf_triton.runtime.fused.parts import UnsupportedLayersError
from hf_triton.runtime.fused.reading.attention import joined_by_prepacking
from hf_triton.runtime.fused.reading.body import read_body
from hf_triton.runtime.fused.reading.recording import NUM_TOKENS, record

from .disentangled import note_disentangled_attention
from .encoder import Encoder
from .own_attention import note_own_attention


@torch.inference_mode()
def read_encoder(
    model: Any, first_position: int, max_length: int, *, has_token_types: bool
) -> Encoder:
    """Reads a base model whose texts begin at ``first_position``. Raises UnsupportedLayersError."""
    ends = first_position, first_position + max_length - 1
    inputs: dict[str, Any] = {}
    if has_token_types:
        inputs["token_type_ids"] = torch.tensor([[0], [1]]).expand(-1, NUM_TOKENS)
    if getattr(model.config, "use_cache", False):
        inputs["use_cache"] = False
    root = record(model, ends, **inputs)
    if not any(call.attended for call in root.walk()):
        note_own_attention(model, root, max_length)
        note_disentangled_attention(model, root, max_length)
    span = first_position, max_length
    body, calls = read_body(model, root, root.output, span, joined_by_prepacking)
    keys = [inner.attended[0].key for call in calls for inner in call.walk() if inner.attended]
    if len({(key.shape[1], key.shape[3]) for key in keys}) > 1:
        raise UnsupportedLayersError("its layers differ in the heads of keys")
    return Encoder(body.embedding, body.layers, body.norm, keys[0].shape[1], keys[0].shape[3])

"""What the fused runner computes of an encoder."""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.runtime.fused.parts import Body


@dataclass(frozen=True)
class Encoder(Body):
    """``kv_heads`` of ``dim`` numbers in every layer."""

    kv_heads: int
    dim: int

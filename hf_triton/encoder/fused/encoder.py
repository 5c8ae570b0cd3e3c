"""What an encoder is made of around its layers, as the fused runner computes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hf_triton.runtime.fused.parts import Layer, Linear, Norm


@dataclass(frozen=True)
class Embedding:
    """``projection(norm(tokens(ids) + positions[i] + types[type]))``; what is None is not
    there. ``positions`` are (those before the first and the longest text, size), ``types`` (kinds
    of tokens, size).
    """

    tokens: Linear
    positions: torch.Tensor | None
    types: torch.Tensor | None
    norm: Norm | None
    projection: Linear | None


@dataclass(frozen=True)
class Encoder:
    """``kv_heads`` of ``dim`` numbers in every layer. ``norm`` is of the last layer's output."""

    embedding: Embedding
    layers: list[Layer]
    norm: Norm | None
    kv_heads: int
    dim: int

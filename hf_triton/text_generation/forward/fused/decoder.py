"""What a decoder is made of around its layers, as the fused runners compute it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hf_triton.runtime.fused.parts import Layer, Linear, Norm


@dataclass(frozen=True)
class Decoder:
    """``positions`` (at least max_model_len, hidden) are added to the scaled embeddings. Logits are
    capped and scaled where ``softcap`` is not 0 or ``logit_scale`` not 1.
    """

    embed: Linear
    layers: list[Layer]
    norm: Norm
    head: Linear
    positions: torch.Tensor | None = None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0

"""What a decoder has beside its layers, as the fused runners compute it."""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.runtime.fused.parts import Body, Linear


@dataclass(frozen=True)
class Decoder(Body):
    """Logits of the ``head`` are capped and scaled where ``softcap`` is not 0 or ``logit_scale``
    not 1.
    """

    head: Linear
    logit_scale: float = 1.0
    softcap: float = 0.0

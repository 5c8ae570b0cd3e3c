"""The Triton model of zero-shot classification."""

from __future__ import annotations

from hf_triton.encoder.triton_model import EncoderModel, Parts

from .options import Options


class ZeroShotClassificationModel(EncoderModel):
    def parts(self) -> Parts:
        from .zero_shot import ZeroShotClassification

        return Options, ZeroShotClassification

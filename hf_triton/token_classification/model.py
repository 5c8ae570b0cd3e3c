"""The Triton model of token classification."""

from __future__ import annotations

from hf_triton.encoder.triton_model import EncoderModel, Parts

from .options import Options


class TokenClassificationModel(EncoderModel):
    def parts(self) -> Parts:
        from .tagging import TokenClassification

        return Options, TokenClassification

"""Triton's side of token classification."""

from __future__ import annotations

from hf_triton.encoder.triton_model import EncoderModel, Parts

from .options import Options


class TokenClassificationModel(EncoderModel):
    """One instance of a served tagger."""

    def parts(self) -> Parts:
        from .tagging import TokenClassification

        return Options, TokenClassification

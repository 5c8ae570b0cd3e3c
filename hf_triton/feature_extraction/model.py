"""Triton's side of feature extraction."""

from __future__ import annotations

from hf_triton.encoder.triton_model import EncoderModel, Parts

from .options import Options


class FeatureExtractionModel(EncoderModel):
    """One instance of a served embedding model."""

    def parts(self) -> Parts:
        from .embedding import FeatureExtraction

        return Options, FeatureExtraction

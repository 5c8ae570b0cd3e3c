"""The Triton model of feature extraction."""

from __future__ import annotations

from hf_triton.encoder.triton_model import EncoderModel, Parts

from .options import Options


class FeatureExtractionModel(EncoderModel):
    def parts(self) -> Parts:
        from .embedding import FeatureExtraction

        return Options, FeatureExtraction

"""Triton's side of feature extraction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_triton.encoder.triton_model import EncoderModel

from .options import Options

if TYPE_CHECKING:
    from .embedding import FeatureExtraction


class FeatureExtractionModel(EncoderModel):
    """One instance of a served embedding model."""

    def parts(self) -> tuple[type[Options], type[FeatureExtraction]]:
        """Options and task."""
        from .embedding import FeatureExtraction

        return Options, FeatureExtraction

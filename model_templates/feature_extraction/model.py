"""Triton's side of feature extraction."""

from __future__ import annotations

from hf_encoder.triton_model import EncoderModel

from .embedding import FeatureExtraction
from .options import Options


class TritonPythonModel(EncoderModel):
    """One instance of a served embedding model."""

    options_class = Options
    task_class = FeatureExtraction

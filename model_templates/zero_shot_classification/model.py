"""Triton's side of zero-shot classification."""

from __future__ import annotations

from hf_encoder.triton_model import EncoderModel

from .options import Options
from .zero_shot import ZeroShotClassification


class TritonPythonModel(EncoderModel):
    """One instance of a served model for natural language inference."""

    options_class = Options
    task_class = ZeroShotClassification

"""Triton's side of token classification."""

from __future__ import annotations

from hf_encoder.triton_model import EncoderModel

from .options import Options
from .tagging import TokenClassification


class TritonPythonModel(EncoderModel):
    """One instance of a served tagger."""

    options_class = Options
    task_class = TokenClassification

"""Triton's side of text classification."""

from __future__ import annotations

from hf_encoder.triton_model import EncoderModel

from .classification import TextClassification
from .options import Options


class TritonPythonModel(EncoderModel):
    """One instance of a served classifier or reranker."""

    options_class = Options
    task_class = TextClassification

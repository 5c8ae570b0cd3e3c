"""Triton's side of fill-mask."""

from __future__ import annotations

from hf_encoder.triton_model import EncoderModel

from .filling import FillMask
from .options import Options


class TritonPythonModel(EncoderModel):
    """One instance of a served masked language model."""

    options_class = Options
    task_class = FillMask

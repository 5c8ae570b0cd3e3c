"""Triton's side of question answering."""

from __future__ import annotations

from hf_encoder.triton_model import EncoderModel

from .answering import QuestionAnswering
from .options import Options


class TritonPythonModel(EncoderModel):
    """One instance of a served reader."""

    options_class = Options
    task_class = QuestionAnswering

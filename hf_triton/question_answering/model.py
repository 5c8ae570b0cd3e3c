"""Triton's side of question answering."""

from __future__ import annotations

from hf_triton.encoder.triton_model import EncoderModel, Parts

from .options import Options


class QuestionAnsweringModel(EncoderModel):
    """One instance of a served reader."""

    def parts(self) -> Parts:
        from .answering import QuestionAnswering

        return Options, QuestionAnswering

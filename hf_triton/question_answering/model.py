"""The Triton model of question answering."""

from __future__ import annotations

from hf_triton.encoder.triton_model import EncoderModel, Parts

from .options import Options


class QuestionAnsweringModel(EncoderModel):
    def parts(self) -> Parts:
        from .answering import QuestionAnswering

        return Options, QuestionAnswering

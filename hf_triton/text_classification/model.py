"""The Triton model of text classification."""

from __future__ import annotations

from hf_triton.encoder.triton_model import EncoderModel, Parts

from .options import Options


class TextClassificationModel(EncoderModel):
    def parts(self) -> Parts:
        from .classification import TextClassification

        return Options, TextClassification

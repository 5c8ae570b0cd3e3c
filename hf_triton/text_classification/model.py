"""Triton's side of text classification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_triton.encoder.triton_model import EncoderModel

from .options import Options

if TYPE_CHECKING:
    from .classification import TextClassification


class TextClassificationModel(EncoderModel):
    """One instance of a served classifier or reranker."""

    def parts(self) -> tuple[type[Options], type[TextClassification]]:
        """Options and task."""
        from .classification import TextClassification

        return Options, TextClassification

"""Triton's side of question answering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_triton.encoder.triton_model import EncoderModel

from .options import Options

if TYPE_CHECKING:
    from .answering import QuestionAnswering


class QuestionAnsweringModel(EncoderModel):
    """One instance of a served reader."""

    def parts(self) -> tuple[type[Options], type[QuestionAnswering]]:
        """Options and task."""
        from .answering import QuestionAnswering

        return Options, QuestionAnswering

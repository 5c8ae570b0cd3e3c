"""Triton's side of token classification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_triton.encoder.triton_model import EncoderModel

from .options import Options

if TYPE_CHECKING:
    from .tagging import TokenClassification


class TokenClassificationModel(EncoderModel):
    """One instance of a served tagger."""

    def parts(self) -> tuple[type[Options], type[TokenClassification]]:
        """Options and task."""
        from .tagging import TokenClassification

        return Options, TokenClassification

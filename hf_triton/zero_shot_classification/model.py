"""Triton's side of zero-shot classification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_triton.encoder.triton_model import EncoderModel

from .options import Options

if TYPE_CHECKING:
    from .zero_shot import ZeroShotClassification


class ZeroShotClassificationModel(EncoderModel):
    """One instance of a served model for natural language inference."""

    def parts(self) -> tuple[type[Options], type[ZeroShotClassification]]:
        """Options and task."""
        from .zero_shot import ZeroShotClassification

        return Options, ZeroShotClassification

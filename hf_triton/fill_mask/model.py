"""Triton's side of fill-mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_triton.encoder.triton_model import EncoderModel

from .options import Options

if TYPE_CHECKING:
    from .filling import FillMask


class FillMaskModel(EncoderModel):
    """One instance of a served masked language model."""

    def parts(self) -> tuple[type[Options], type[FillMask]]:
        """Options and task."""
        from .filling import FillMask

        return Options, FillMask

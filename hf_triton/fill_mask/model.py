"""Triton's side of fill-mask."""

from __future__ import annotations

from hf_triton.encoder.triton_model import EncoderModel, Parts

from .options import Options


class FillMaskModel(EncoderModel):
    """One instance of a served masked language model."""

    def parts(self) -> Parts:
        from .filling import FillMask

        return Options, FillMask

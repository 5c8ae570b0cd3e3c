"""The Triton model of the task fill-mask."""

from __future__ import annotations

from hf_triton.encoder.triton_model import EncoderModel, Parts

from .options import Options


class FillMaskModel(EncoderModel):
    def parts(self) -> Parts:
        from .filling import FillMask

        return Options, FillMask

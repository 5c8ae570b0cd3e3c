"""Triton's side of every encoder task."""

from __future__ import annotations

from hf_triton.runtime.engine.triton_model import Loader, TritonModel


class EncoderModel(TritonModel):
    """One instance of a served encoder: all of it, or one step of an ensemble."""

    def loader(self) -> Loader:
        from .reception import serve

        return serve

"""Triton's side of a model that reads sounds with its texts: that of text generation, loaded
another way.
"""

from __future__ import annotations

from functools import partial

from hf_triton.runtime.engine.triton_model import Loader, TritonModel, serve

from .options import Options


class AudioTextToTextModel(TritonModel):
    """One instance of a served model that hears."""

    def loader(self) -> Loader:
        from hf_triton.text_generation.media_loading import load_media_engine
        from hf_triton.text_generation.reception import Reception

        return partial(serve, partial(load_media_engine, Options), Reception)
